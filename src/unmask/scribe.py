"""Between texts and canvases: rows with masks from a user's words, texts and orders from a walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint import Card
from unmask.constraints import Automaton, Constraint, Vocabulary, bind
from unmask.data.policies import rows_given, rows_of_texts
from unmask.data.rows import Rows
from unmask.data.tokenizers import encode
from unmask.errors import UnmaskError
from unmask.samplers.base import Canvas, State
from unmask.templates import PieceReader, decode_canvas, parse_blanks, without_spaces_before_blanks

SPACES = "Ġ▁"
"""How vocabularies of byte-level BPE and SentencePiece write a space."""


@dataclass(frozen=True)
class Generation:
    """One finished sequence. `order` is the network call that wrote each token (-1: given), `confidence` its chance."""

    text: str
    ids: list[int]
    order: list[int]
    confidence: list[float]
    calls: int
    seed: int


@dataclass(frozen=True)
class Frame:
    """A canvas on its way: `text` shows a block where a mask is; `call` of `calls` network calls are done.

    Where the network decides how many there are, `calls` is the most that there may be.

    `pieces` is what each position adds to the text, None where it is masked; the first `end` of them make up `text`.
    """

    text: str
    ids: list[int]
    order: list[int]
    confidence: list[float]
    call: int
    calls: int
    pieces: list[str | None]
    end: int


class Scribe:
    """Knows a model's tokenizer, lengths and length policy, and nothing of its network."""

    def __init__(self, tokenizer: Any, config: Any, card: Card) -> None:
        self.tokenizer = tokenizer
        self.card = card
        self.mask = config.mask_token_id
        self.vocabulary = Vocabulary(tokenizer, config.vocab_size, config.mask_token_id, card.policy.ends_with_eos)
        self.limit = config.max_length
        """Tokens that the network can see at once."""

    @property
    def words(self) -> Any:
        """The tokenizer, which verbs on texts need; converted weights may come without one."""
        if self.tokenizer is None:
            raise UnmaskError("This checkpoint has no tokenizer; convert it again and name one with --tokenizer.")
        return self.tokenizer

    @property
    def length(self) -> int:
        """Tokens of a row, as the model was trained."""
        return min(self.card.length, self.limit)

    def open_row(self, prompt: str, length: int | None) -> list[int]:
        """A prompt with masks behind it."""
        return self.extend(encode(self.words, [prompt])[0] if prompt else [], length)

    def extend(self, ids: list[int], length: int | None) -> list[int]:
        """Masks behind the given tokens, up to the length of the canvas."""
        limit = self.limit
        length = self.length if length is None else length
        if length < 1:
            raise UnmaskError(f"A text of length {length} cannot be generated; ask for at least one token.")
        if length > limit:
            raise UnmaskError(
                f"A canvas of {length} tokens is longer than the {limit} of this model; ask for at most that, and "
                "write longer text window by window (semi-autoregressive sampling): the end of one text is the prompt "
                "of the next."
            )
        if len(ids) > length:
            raise UnmaskError(
                f"The prompt has {len(ids)} tokens and the canvas {length}; shorten it or ask for a longer text."
            )
        return ids + [self.mask] * (length - len(ids))

    def blank_ids(self, text: str) -> list[int]:
        """Token ids of a text with `[MASK]` and `[MASK:n]` blanks.

        Where tokens begin with the space before a word, a blank takes that space along, as a word would.
        """
        parts = parse_blanks(text)
        if self._spaces_lead:
            parts = without_spaces_before_blanks(parts)
        known = iter(encode(self.words, [part for part in parts if isinstance(part, str)]))
        mask = self.mask
        return [i for part in parts for i in (next(known) if isinstance(part, str) else [mask] * part)]

    @cached_property
    def _spaces_lead(self) -> bool:
        """Whether tokens begin with the space before a word, as those of byte-level BPE and SentencePiece do."""
        return any(len(token) > 1 and token[0] in SPACES for token in self.words.get_vocab())

    def blank_row(self, text: str) -> list[int]:
        """A text with blanks, framed as the length policy frames a text."""
        ids = self.blank_ids(text)
        mask, limit = self.mask, self.limit
        if mask not in ids:
            raise UnmaskError(f"The text {text!r} has no blank; mark one with [MASK] or [MASK:n].")
        if len(ids) > limit:
            raise UnmaskError(f"The text has {len(ids)} tokens and this model reads {limit}; shorten it.")
        if self.card.objective.causal and any(i != mask for i in ids[ids.index(mask) :]):
            raise UnmaskError("An autoregressive model cannot see what stands after a blank; fill with a masked one.")
        return self.card.policy.frame(ids, self.length, self.words.eos_token_id)

    def canvas(self, rows: list[list[int]], seed: int, device: torch.device) -> Canvas:
        """A canvas of ragged rows, padded on the right."""
        width = max(len(row) for row in rows)
        pad = self.words.pad_token_id or 0
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
        real = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows], device=device)
        return Canvas.of(ids, self.mask, seed, real)

    def bind(self, constraint: Constraint | Sequence[Constraint] | None, rows: list[list[int]]) -> Automaton | None:
        """What one or several constraints ask of these rows; an error where one of the rows cannot satisfy them."""
        if constraint is None:
            return None
        constraints = list(constraint) if isinstance(constraint, Sequence) else [constraint]
        if not constraints or not all(isinstance(one, Constraint) for one in constraints):
            raise UnmaskError(f"{constraint!r} is no constraint; give one of unmask.constraints, or a list of them.")
        return bind(constraints, self.vocabulary, rows)

    def finish(self, state: State) -> list[Generation]:
        """What a finished walk wrote, sequence by sequence."""
        canvas = state.canvas
        columns = (state.ids, state.order, state.confidence, canvas.attention_mask)
        rows = zip(*(_listed(column) for column in columns), state.calls.tolist(), canvas.seeds.tolist(), strict=True)
        done = []
        for ids, order, confidence, real, calls, seed in rows:
            size = sum(real)
            text = self.decode(ids[:size])
            done.append(Generation(text, ids[:size], order[:size], confidence[:size], calls, seed))
        return done

    def frame(self, state: State, reader: PieceReader) -> Frame:
        """What the one sequence of a walk looks like now."""
        ids, order, confidence = (_listed(x)[0] for x in (state.ids, state.order, state.confidence))
        pieces, end = reader.read(ids), self._end(ids)
        return Frame(self.decode(ids), ids, order, confidence, state.call, state.total, pieces, end)

    def decode(self, ids: list[int]) -> str:
        """The text of a canvas; where the length policy ends a text with EOS, up to the first one."""
        return decode_canvas(self.words, ids[: self._end(ids)], self.mask)

    def _end(self, ids: list[int]) -> int:
        """Tokens of a canvas that are its text."""
        eos = self.words.eos_token_id
        return ids.index(eos) if self.card.policy.ends_with_eos and eos in ids else len(ids)

    def scored_rows(self, texts: list[str], given: str | Sequence[str] | None) -> Rows:
        """Rows whose texts are counted, each behind its condition."""
        ids = encode(self.words, texts)
        conditions = _paired(given, len(texts))
        for text, tokens in zip(texts, ids, strict=True):
            if not tokens:
                raise UnmaskError(f"The text {text!r} has no tokens, so it has no likelihood; give some text.")
        length, eos = self.length, self.words.eos_token_id
        if conditions is None:
            return rows_of_texts(self.card.policy, ids, length, eos, texts=texts)
        return rows_given(self.card.policy, encode(self.words, conditions), ids, length, eos, texts=texts)


def _paired(given: str | Sequence[str] | None, count: int) -> list[str] | None:
    """One condition for each text."""
    if given is None:
        return None
    conditions = [given] * count if isinstance(given, str) else list(given)
    if len(conditions) != count:
        raise UnmaskError(
            f"There are {count} texts and {len(conditions)} conditions; give one for each or one for all."
        )
    return conditions


def _listed(column: Tensor) -> list[Any]:
    return column.tolist()
