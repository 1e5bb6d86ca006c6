"""Which tokens of a text are written anew: those of some characters, the least likely ones, or all but some words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, islice, product
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unmask.constraints import Automaton, Banned, Constraint, Vocabulary
from unmask.data.encoding import encode
from unmask.errors import UnmaskError
from unmask.generation_config import Constraints
from unmask.objectives.base import Noise
from unmask.objectives.subs import MaskCount
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.schedules import Schedule, van_der_corput
from unmask.text_processor import UNFINISHED, Part, PieceReader, TextProcessor, checked_text

TOGETHER = 64
"""Combinations up to which the lengths of several blanks are chosen together."""
MOST = TOGETHER**2
"""Combinations among which one that will do is looked for."""
DRAWS, FIRST = 16, 4
"""Draws of the bound, of which the first few tell which quarter of the lengths is worth the others."""
ROWS_AT_ONCE = 64

Nats = Callable[[list[list[Part]], range], list[float]]
"""Draws, by their numbers, of the bound of the known tokens of texts, summed."""


class Demand(NamedTuple):
    """What else is asked of a text whose blanks have lengths: whether it `fits`, and the reason where it does not."""

    fits: Callable[[list[Part]], bool]
    reason: Callable[[list[Part]], str]


NOTHING = Demand(lambda parts: True, lambda parts: "")


def settle(parts: Sequence[Part], nats: Nats, room: float = math.inf, demand: Demand = NOTHING) -> list[Part]:
    """A text whose blanks have one length each, with which they fit into the room that there is for all of them and
    into what else is asked: of all combinations the best where they are few.

    Otherwise one blank after the other, from the left, those to its right as short as they may be.
    """
    every = combinations(parts, room)
    fitting = filter(demand.fits, every)
    chosen, count = next(fitting, None), math.prod(map(len, _choices(parts)))
    if chosen is None and count > MOST:
        raise UnmaskError(f"None of the {MOST} lengths of the blanks that were tried will do; narrow their ranges.")
    if chosen is None:
        longest = max(every, key=_size)
        raise UnmaskError(f"No length of the blanks will do; with the longest: {demand.reason(longest)}")
    if count <= TOGETHER:
        return _best([chosen, *fitting], nats)
    for place, part in enumerate(parts):
        if isinstance(part, range):
            tried = [[*chosen[:place], one, *chosen[place + 1 :]] for one in part]
            chosen = _best([one for one in tried if _size(one) <= room and demand.fits(one)], nats)
    return chosen


def combinations(parts: Sequence[Part], room: float) -> list[list[Part]]:
    """A text with every length of its blanks for which there is room, from the shortest on; of very many the first."""
    every = [list(one) for one in islice(product(*_choices(parts)), MOST) if _size(one) <= room]
    if not every:
        raise UnmaskError(_too_long(parts, room))
    return every


def _choices(parts: Sequence[Part]) -> list[list[Part]]:
    return [list(part) if isinstance(part, range) else [part] for part in parts]


def _size(parts: Sequence[Part]) -> int:
    """Tokens of all blanks."""
    return sum(part for part in parts if isinstance(part, int))


def _too_long(parts: Sequence[Part], room: float) -> str:
    longest = max((part for part in parts if isinstance(part, range)), key=lambda part: part.start)
    named = f"[MASK:{longest.start}-{longest.stop - 1}]"
    return f"There is room for {max(0, room)} tokens in blanks, and {named} does not fit in; shorten it or the text."


def _best(candidates: list[list[Part]], nats: Nats) -> list[Part]:
    if len(candidates) == 1:
        return candidates[0]
    first = nats(candidates, range(FIRST))
    hopeful = sorted(range(len(candidates)), key=first.__getitem__)[: max(2, math.ceil(len(candidates) / 4))]
    others = nats([candidates[i] for i in hopeful], range(FIRST, DRAWS))
    total = {i: first[i] + more for i, more in zip(hopeful, others, strict=True)}
    return candidates[min(total, key=total.__getitem__)]


def nats_of_known(denoiser: Any, schedule: Schedule, text_processor: TextProcessor, device: torch.device) -> Nats:
    """The judge of lengths that a network is."""
    if text_processor.config.objective.causal:
        raise UnmaskError("An autoregressive model cannot tell how long a blank is; give a number, as in [MASK:3].")

    def nats(candidates: list[list[Part]], draws: range) -> list[float]:
        numbers = torch.tensor(draws, device=device)
        return [
            _nats(denoiser, schedule, text_processor, text_processor.blank_ids(parts), numbers) for parts in candidates
        ]

    return nats


@torch.no_grad()
def _nats(denoiser: Any, schedule: Schedule, text_processor: TextProcessor, ids: list[int], draws: Tensor) -> float:
    """The bound of the tokens that are no masks, given that the masks stay; the frame of the row is not counted."""
    device = draws.device
    row = torch.tensor(text_processor.blank_row(ids), device=device)
    known = (row != text_processor.mask) & (torch.arange(len(row), device=device) < len(ids))
    total = 0.0
    for draw in draws.split(ROWS_AT_ONCE):
        batch = Batch.of(row.expand(len(draw), -1), frozen=~known.expand(len(draw), -1))
        terms = MaskCount().loss(denoiser, batch, schedule, _noise(draw, known))
        total += float(terms.total)
    return total


def _noise(draw: Tensor, known: Tensor) -> Noise:
    """For the draws [B]: times that every few spread evenly, and numbers [B, L] of a known token wherever it stands."""
    number = known.cumsum(dim=0) - 1
    u = uniform(0, Purpose.MASK, draw[:, None], position=number[None])
    return Noise((van_der_corput(DRAWS, draw.device)[draw % DRAWS] + 0.5) / DRAWS, u)


Rows = Callable[[list[int]], list[list[int]]]
"""The rows that can be made of the tokens of a text."""


class TemplateLayout:
    """Lays out texts for a network. Of the lengths that a blank may have it takes the likeliest with which a row can
    satisfy the constraint."""

    def __init__(
        self, text_processor: TextProcessor, denoiser: Any, device: torch.device, constraint: Constraints
    ) -> None:
        self.text_processor, self.denoiser, self.device = text_processor, denoiser, device
        self._terms = cache(lambda longest: text_processor.terms(constraint, longest))

    def open_rows(self, prompts: Sequence[str], suffix: str, length: int | None) -> list[list[int]]:
        """A row for each prompt."""
        self._read([*prompts, suffix])
        return [self.open_row(one, suffix, length) for one in prompts]

    def open_row(self, prompt: str, suffix: str, length: int | None) -> list[int]:
        """A prompt and a suffix, either with blanks, and masks between them."""
        room, row = self.text_processor.room(length), self.text_processor.open_ids
        tails = cache(lambda: self._possible(suffix, room))

        def with_a_tail(ids: list[int]) -> list[list[int]]:
            return [row(ids, room, tail) for tail in tails() if len(ids) + len(tail) <= room]

        head = self._settled(prompt, room, with_a_tail, beside=self._least(suffix))
        tail = self._settled(suffix, room, lambda ids: [row(head, room, ids)], beside=len(head))
        return row(head, room, tail)

    def blank_rows(self, texts: Sequence[str]) -> list[list[int]]:
        """A row for each text with blanks, framed."""
        self._read(texts)
        return [self._blank_row(text) for text in texts]

    def _blank_row(self, text: str) -> list[int]:
        frame = self.text_processor.blank_row
        return frame(self._settled(text, self.text_processor.limit, lambda ids: [frame(ids)]))

    def _read(self, texts: Sequence[str]) -> None:
        """Find what is wrong with the blanks of any text before the network is asked about one."""
        for text in texts:
            parts = self.text_processor.parts(text)
            if _is_open(parts) and not self.text_processor.known(parts):
                raise UnmaskError(
                    "A text of blanks alone does not tell how long they are; give a number, as in [MASK:3]."
                )

    def _settled(self, text: str, room: int, rows: Rows, beside: int = 0) -> list[int]:
        """The tokens of a text with blanks, each as long as it is to be; all are at most as many as there is room, of
        which some is needed `beside` open ones."""
        text_processor, parts = self.text_processor, self.text_processor.parts(text)
        if _is_open(parts):
            nats = nats_of_known(
                text_processor.goes_on(self.denoiser), text_processor.config.schedule, text_processor, self.device
            )
            parts = settle(parts, nats, self._spare(parts, room - beside), self._demand(room, rows))
        return text_processor.blank_ids(parts, room)

    def _possible(self, text: str, room: int) -> list[list[int]]:
        """The tokens of a text with blanks, for all lengths that these may have, the shortest first."""
        parts = self.text_processor.parts(text)
        every = combinations(parts, self._spare(parts, room)) if _is_open(parts) else [parts]
        return [self.text_processor.blank_ids(one, room) for one in every]

    def _least(self, text: str) -> int:
        """Tokens of a text whose blanks are as short as they may be."""
        parts = self.text_processor.parts(text)
        blanks = (part.start if isinstance(part, range) else part for part in parts if not isinstance(part, str))
        return self.text_processor.known(parts) + sum(blanks)

    def _spare(self, parts: Sequence[Part], room: int) -> int:
        """Room for blanks."""
        return min(room, self.text_processor.limit) - self.text_processor.known(parts)

    def _demand(self, room: int, rows: Rows) -> Demand:
        """Of a text whose blanks have lengths, that one of its rows can satisfy the constraint."""
        terms = self._terms(room)
        if terms is None:
            return NOTHING

        def made_of(parts: list[Part]) -> list[list[int]]:
            return [self.text_processor.without_end(row) for row in rows(self.text_processor.blank_ids(parts))]

        def fits(parts: list[Part]) -> bool:
            return any(map(terms.accept, made_of(parts)))

        return Demand(fits, lambda parts: terms.reason(made_of(parts)[-1]))


def prompts_of(prompt: str, prompts: Iterable[str] | None) -> list[str]:
    """The one prompt, or all of several."""
    if prompts is None:
        return [prompt]
    if prompt:
        raise UnmaskError("There is a prompt and a list of prompts; give one of them.")
    several = [] if isinstance(prompts, str) or not isinstance(prompts, Iterable) else list(prompts)
    if not several:
        raise UnmaskError(f"prompts={prompts!r} is no list of texts; give at least one, or a single prompt=.")
    return several


def _is_open(parts: Sequence[Part]) -> bool:
    """Whether a blank has several lengths."""
    return any(isinstance(part, range) for part in parts)


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
    for token, piece in enumerate(vocabulary.token_bytes[1]):
        letters = (piece or b"").decode(errors="replace")
        if token != vocabulary.mask and (not letters or letters[side].isalnum() or letters[side] == UNFINISHED):
            yield token


@dataclass(frozen=True)
class Draft:
    """The tokens of a text, with masks where it is to be written anew, and the edges of what is kept."""

    ids: list[int]
    edges: tuple[Edges, ...] = ()


def opened_up(
    text_processor: TextProcessor,
    denoiser: Any,
    text: str,
    spans: Sequence[Span] | None,
    strength: float | None,
    keep: Sequence[str] | str | None,
) -> Draft:
    """A text that is to be written anew in some places, by the one of three ways that is given."""
    if sum(one is not None for one in (spans, strength, keep)) > 1:
        raise UnmaskError("A text is edited by spans, by strength or by what is kept; give one of them.")
    ids = tokens(text_processor, text)
    if keep is not None:
        return around(text_processor, text, kept_words(keep))
    if spans is not None:
        return Draft(without_spans(text_processor, text, ids, spans))
    return Draft(without_unlikely(text_processor, denoiser, ids, STRENGTH if strength is None else strength))


def kept_words(keep: Any) -> list[str]:
    """The words that a user wants to keep: one or several."""
    words = [keep] if isinstance(keep, str) else keep
    if not isinstance(words, Sequence) or not all(isinstance(word, str) for word in words):
        raise UnmaskError(f"keep={keep!r} are no words; give one, or a list of them.")
    return list(words)


def without_spans(text_processor: TextProcessor, text: str, ids: list[int], spans: Sequence[Span]) -> list[int]:
    """The tokens `ids` of a text, masked where they hold one of the characters from `start` to before `end`.

    A token is masked as a whole, so that a letter beside a span may be written anew too.
    """
    if not isinstance(spans, Sequence) or not all(map(_is_span, spans)):
        raise UnmaskError(f"spans={spans!r} are no places of a text; give pairs (start, end) of characters.")
    for start, end in spans:
        if not 0 <= start < end <= len(text):
            raise UnmaskError(
                f"The span {start} to {end} is not in a text of {len(text)} characters; count from 0, start before end."
            )
    pieces = [piece or "" for piece in PieceReader(text_processor.tokenizer, text_processor.mask).read(ids)]
    if "".join(pieces) != text:
        raise UnmaskError("This tokenizer does not give back the characters of the text; edit it by strength instead.")
    out, at = [], 0
    for token, piece in zip(ids, pieces, strict=True):
        reach = at + max(1, len(piece))  # a part of a letter has no piece of its own: it is where the letter will be
        out.append(text_processor.mask if any(at < end and start < reach for start, end in spans) else token)
        at += len(piece)
    return out


def _is_span(asked: Any) -> bool:
    return isinstance(asked, Sequence) and len(asked) == 2 and all(isinstance(one, Integral) for one in asked)


def without_unlikely(text_processor: TextProcessor, denoiser: Any, ids: list[int], strength: float) -> list[int]:
    """The tokens `ids` of a text with the share `strength` of them masked that the network finds least likely."""
    if not isinstance(strength, Real) or not 0 < strength <= 1:
        raise UnmaskError(f"strength={strength} is no share of the tokens; give a number above 0 and at most 1.")
    row = torch.tensor(text_processor.blank_row(ids))
    count = max(1, round(strength * len(ids)))
    chosen = log_chances(denoiser, row, len(ids)).argsort(stable=True)[:count].tolist()
    return [text_processor.mask if place in set(chosen) else token for place, token in enumerate(ids)]


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


def around(text_processor: TextProcessor, text: str, keep: Sequence[str]) -> Draft:
    """Every place of the kept words in a text, and blanks of as many tokens as the text between them has.

    Kept words become tokens of their own, so that none of them reaches beyond; where tokens begin with the space before
    a word, it is kept along. A word that ends in the text does not go on in a blank.
    """
    held = _merged([_with_space(text_processor, text, span) for word in keep for span in _places(text, word)])
    parts: list[Part] = []
    at = 0
    for start, end in [*held, (len(text), len(text))]:
        if start > at:
            parts.append(len(encode(text_processor.tokenizer, [text[at:start]])[0]))
        if end > start:
            parts.append(text[start:end])
        at = end
    if all(isinstance(part, str) for part in parts):
        raise UnmaskError("All of the text is to be kept, so nothing is left to rewrite; keep less.")
    return Draft(text_processor.blank_ids(parts), _edges(text_processor, text, held, parts))


def _with_space(text_processor: TextProcessor, text: str, span: Span) -> Span:
    start, end = span
    return (start - 1, end) if text_processor.spaces_lead and text[:start].endswith(" ") else span


def _edges(text_processor: TextProcessor, text: str, held: list[Span], parts: list[Part]) -> tuple[Edges, ...]:
    """Where a kept span begins or ends a word, the blank beside it must not go on with it."""
    ends = list(accumulate(len(text_processor.blank_ids([part])) for part in parts))
    kept = list(zip(held, [i for i, part in enumerate(parts) if isinstance(part, str)], strict=True))
    before = tuple(ends[i - 1] - 1 for (start, _), i in kept if _is_edge(text, start, start - 1) and parts[i - 1])
    behind = tuple(ends[i] for (_, end), i in kept if _is_edge(text, end - 1, end) and parts[i + 1])
    return tuple(edges for edges in (Edges(before, -1), Edges(behind, 0)) if edges.places)


def _is_edge(text: str, inside: int, outside: int) -> bool:
    """Whether the character at one place belongs to a word that the one at the other does not go on with."""
    return 0 <= outside < len(text) and text[inside].isalnum() and not text[outside].isalnum()


def tokens(text_processor: TextProcessor, text: str) -> list[int]:
    """The tokens of a text that a masked model is to change."""
    if text_processor.config.objective.causal:
        raise UnmaskError("An autoregressive model cannot see what stands behind a token; edit with a masked one.")
    ids = encode(text_processor.tokenizer, [checked_text(text)])[0]
    if not ids:
        raise UnmaskError(f"The text {text!r} has no tokens to change; give some text.")
    return ids


def _places(text: str, word: str) -> list[Span]:
    if not word or word not in text:
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
