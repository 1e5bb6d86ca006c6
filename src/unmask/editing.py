"""Which tokens of a text are written anew: those of some characters, the least likely ones, or all but some words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.constraints import Automaton, Banned, Constraint, Vocabulary
from unmask.data.tokenizers import encode
from unmask.errors import UnmaskError
from unmask.scribe import Scribe, checked_text
from unmask.templates import UNFINISHED, Part, PieceReader
from unmask.wishes import check_whole

PASSES = 8
"""Network rows by which the tokens of a text are judged: each hides every eighth of them."""
STRENGTH = 0.3

Span = tuple[int, int]


@dataclass(frozen=True)
class Edges(Constraint):
    """The edges of kept words: at these positions of the canvas no token has a letter at its end (`side` -1, before a
    word) or at its beginning (`side` 0, behind one)."""

    places: tuple[int, ...]
    side: Literal[-1, 0]

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return Banned(list(_goes_on(vocabulary, self.side)), self.places).automaton(vocabulary)

    def __repr__(self) -> str:
        return "kept words that stay words"


def _goes_on(vocabulary: Vocabulary, side: int) -> Iterator[int]:
    """The tokens that have a letter at this side, or may: a part of one, or nothing at all."""
    for token, piece in enumerate(vocabulary.pieces[1]):
        letters = (piece or b"").decode(errors="replace")
        if token != vocabulary.mask and (not letters or letters[side].isalnum() or letters[side] == UNFINISHED):
            yield token


@dataclass(frozen=True)
class Draft:
    """The tokens of a text, with masks where it is to be written anew, and the edges of what is kept."""

    ids: list[int]
    edges: tuple[Edges, ...] = ()


def opened_up(
    scribe: Scribe,
    denoiser: Any,
    text: str,
    spans: Sequence[Span] | None,
    strength: float | None,
    keep: Sequence[str] | str | None,
) -> Draft:
    """A text that is to be written anew in some places, by the one of three ways that is given."""
    if sum(one is not None for one in (spans, strength, keep)) > 1:
        raise UnmaskError("A text is edited by spans, by strength or by what is kept; give one of them.")
    ids = tokens(scribe, text)
    if keep is not None:
        if not isinstance(keep, Sequence):
            raise UnmaskError(f"keep={keep!r} are no words; give one, or a list of them.")
        return around(scribe, text, [keep] if isinstance(keep, str) else keep)
    if spans is not None:
        return Draft(without_spans(scribe, text, ids, spans))
    return Draft(without_unlikely(scribe, denoiser, ids, STRENGTH if strength is None else strength))


def without_spans(scribe: Scribe, text: str, ids: list[int], spans: Sequence[Span]) -> list[int]:
    """The tokens `ids` of a text, masked where they hold one of the characters from `start` to before `end`.

    A token is masked as a whole, so that a letter beside a span may be written anew too.
    """
    if not isinstance(spans, Sequence) or not all(isinstance(span, Sequence) and len(span) == 2 for span in spans):
        raise UnmaskError(f"spans={spans!r} are no places of a text; give pairs (start, end) of characters.")
    for start, end in spans:
        check_whole(start=start, end=end)
        if not 0 <= start < end <= len(text):
            raise UnmaskError(
                f"The span {start} to {end} is not in a text of {len(text)} characters; count from 0, start before end."
            )
    pieces = [piece or "" for piece in PieceReader(scribe.words, scribe.mask).read(ids)]
    if "".join(pieces) != text:
        raise UnmaskError("This tokenizer does not give back the characters of the text; edit it by strength instead.")
    out, at = [], 0
    for token, piece in zip(ids, pieces, strict=True):
        reach = at + max(1, len(piece))  # a part of a letter has no piece of its own: it is where the letter will be
        out.append(scribe.mask if any(at < end and start < reach for start, end in spans) else token)
        at += len(piece)
    return out


def without_unlikely(scribe: Scribe, denoiser: Any, ids: list[int], strength: float) -> list[int]:
    """The tokens `ids` of a text with the share `strength` of them masked that the network finds least likely."""
    if not isinstance(strength, Real) or not 0 < strength <= 1:
        raise UnmaskError(f"strength={strength} is no share of the tokens; give a number above 0 and at most 1.")
    row = torch.tensor(scribe.blank_row(ids))
    count = max(1, round(strength * len(ids)))
    chosen = log_chances(denoiser, row, len(ids)).argsort(stable=True)[:count].tolist()
    return [scribe.mask if place in set(chosen) else token for place, token in enumerate(ids)]


@torch.no_grad()
def log_chances(denoiser: Any, row: Tensor, count: int) -> Tensor:
    """[count] log p of each of the first tokens of a row [L] given the others, but for those hidden with it.

    Pass g hides the tokens g, g + 8, g + 16, ...: one network call of (at most) eight rows.
    """
    device = getattr(denoiser, "device", row.device)
    row, passes = row.to(device), min(PASSES, count)
    place = torch.arange(len(row), device=device)
    hidden = (place % passes == torch.arange(passes, device=device)[:, None]) & (place < count)
    ids = row.expand(passes, -1).masked_fill(hidden, denoiser.config.mask_token_id)
    alpha = 1.0 - hidden.float().mean(dim=1)
    which = place[:count] % passes
    rows = denoiser.hidden(ids, alpha=alpha)[which, place[:count]]
    log_p = denoiser.head(rows).float().log_softmax(-1)
    return log_p.gather(1, row[:count, None])[:, 0]


def around(scribe: Scribe, text: str, keep: Sequence[str]) -> Draft:
    """Every place of the kept words in a text, and blanks of as many tokens as the text between them has.

    Kept words become tokens of their own, so that none of them reaches beyond; where tokens begin with the space before
    a word, it is kept along. A word that ends in the text does not go on in a blank.
    """
    held = _merged([_with_space(scribe, text, span) for word in keep for span in _places(text, word)])
    parts: list[Part] = []
    at = 0
    for start, end in [*held, (len(text), len(text))]:
        if start > at:
            parts.append(len(encode(scribe.words, [text[at:start]])[0]))
        if end > start:
            parts.append(text[start:end])
        at = end
    if all(isinstance(part, str) for part in parts):
        raise UnmaskError("All of the text is to be kept, so nothing is left to rewrite; keep less.")
    return Draft(scribe.blank_ids(parts), _edges(scribe, text, held, parts))


def _with_space(scribe: Scribe, text: str, span: Span) -> Span:
    start, end = span
    return (start - 1, end) if scribe.spaces_lead and text[:start].endswith(" ") else span


def _edges(scribe: Scribe, text: str, held: list[Span], parts: list[Part]) -> tuple[Edges, ...]:
    """Where a kept span begins or ends a word, the blank beside it must not go on with it."""
    ends = list(accumulate(len(scribe.blank_ids([part])) for part in parts))
    kept = list(zip(held, [i for i, part in enumerate(parts) if isinstance(part, str)], strict=True))
    before = tuple(ends[i - 1] - 1 for (start, _), i in kept if _is_edge(text, start, start - 1) and parts[i - 1])
    behind = tuple(ends[i] for (_, end), i in kept if _is_edge(text, end - 1, end) and parts[i + 1])
    return tuple(edges for edges in (Edges(before, -1), Edges(behind, 0)) if edges.places)


def _is_edge(text: str, inside: int, outside: int) -> bool:
    """Whether the character at one place belongs to a word that the one at the other does not go on with."""
    return 0 <= outside < len(text) and text[inside].isalnum() and not text[outside].isalnum()


def tokens(scribe: Scribe, text: str) -> list[int]:
    """The tokens of a text that a masked model is to change."""
    if scribe.card.objective.causal:
        raise UnmaskError("An autoregressive model cannot see what stands behind a token; edit with a masked one.")
    ids = encode(scribe.words, [checked_text(text)])[0]
    if not ids:
        raise UnmaskError(f"The text {text!r} has no tokens to change; give some text.")
    return ids


def _places(text: str, word: str) -> list[Span]:
    if not isinstance(word, str) or not word or word not in text:
        raise UnmaskError(f"{word!r} is not in the text, so it cannot be kept; give words as they stand there.")
    starts = [start for start in range(len(text)) if text.startswith(word, start)]
    return [(start, start + len(word)) for start in starts]


def _merged(spans: list[Span]) -> list[Span]:
    """The same characters in spans that do not overlap, in order."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out
