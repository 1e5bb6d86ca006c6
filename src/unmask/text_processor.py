"""Between texts and canvases: rows with masks from a user's words, texts and orders from a walk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint import CheckpointConfig
from unmask.constraints import (
    Automaton,
    CompiledConstraints,
    Constraint,
    Vocabulary,
    as_constraints,
    compile_constraints,
    masks_before_text,
)
from unmask.data.encoding import encode, encode_one
from unmask.data.length_policies import rows_given, rows_of_texts
from unmask.data.rows import Rows
from unmask.errors import UnmaskError
from unmask.generation_config import check_most
from unmask.samplers.base import Canvas, State
from unmask.samplers.guidance import MaskPaddedDenoiser

BLANK = re.compile(r"\[MASK(?::([^\]]*))?\]")
GLYPH = "░"
UNFINISHED = "�"
LONGEST_LETTER = 4
"""Bytes of one letter in UTF-8, at most."""
MOST_LENGTHS = 64
"""Lengths that one blank may choose among."""

Part = str | int | range
"""A known piece of a text, or a blank: its number of tokens, or the numbers that it may have."""


def parse_blanks(text: str) -> list[Part]:
    """The known pieces of a text and, between them, the number of tokens of each blank, or those it may have."""
    parts: list[Part] = []
    end = 0
    for match in BLANK.finditer(text):
        if match.start() > end:
            parts.append(text[end : match.start()])
        parts.append(_width(match))
        end = match.end()
    if end < len(text):
        parts.append(text[end:])
    return parts


def without_spaces_before_blanks(parts: list[Part]) -> list[Part]:
    """The pieces of a text, of which one space before a blank is left to the blank."""
    following = [*parts, ""][1:]
    return [
        part[:-1] if isinstance(part, str) and not isinstance(after, str) and part.endswith(" ") else part
        for part, after in zip(parts, following, strict=True)
    ]


def decode_canvas(tokenizer: Any, ids: list[int], mask_token_id: int) -> str:
    """The text of token ids; every mask is shown as a block, and the end of a document as a new line."""
    eos = tokenizer.eos_token_id
    pieces = []
    for kind, run in groupby(ids, key=lambda i: GLYPH if i == mask_token_id else "\n" if i == eos else None):
        tokens = list(run)
        pieces.append(kind * len(tokens) if kind else tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
    return "".join(pieces)


class PieceReader:
    """Tells what each position of a canvas adds to its text; remembers what tokens decode to."""

    def __init__(self, tokenizer: Any, mask_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._mask = mask_token_id
        self._known: dict[tuple[int, ...], str] = {}

    def read(self, ids: list[int]) -> list[str | None]:
        """A piece of text for every token, None for a mask; joined they are the text of `decode_canvas`.

        A letter made of several tokens belongs to the last of them.
        """
        eos = self._tokenizer.eos_token_id
        pieces: list[str | None] = []
        for kind, run in groupby(ids, key=lambda i: "mask" if i == self._mask else "end" if i == eos else "text"):
            tokens = list(run)
            fixed = {"mask": None, "end": "\n"}
            pieces += [fixed[kind]] * len(tokens) if kind in fixed else self._split(tokens)
        return pieces

    def _split(self, tokens: list[int]) -> list[str]:
        pieces, start = [], 0
        for end in range(1, len(tokens) + 1):
            piece = self._decode(tokens[start:end])
            unfinished = piece.endswith(UNFINISHED) and end - start < LONGEST_LETTER and end < len(tokens)
            pieces.append("" if unfinished else piece)
            start = start if unfinished else end
        whole = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return pieces if "".join(pieces) == whole else self._split_by_growth(tokens, whole)

    def _split_by_growth(self, tokens: list[int], whole: str) -> list[str]:
        """Slower, for tokenizers whose tokens read differently alone than among others."""
        ends = [0]
        for size in range(1, len(tokens)):
            grown = self._tokenizer.decode(tokens[:size], clean_up_tokenization_spaces=False).rstrip(UNFINISHED)
            ends.append(max(ends[-1], len(grown)))
        return [whole[a:b] for a, b in pairwise([*ends, len(whole)])]

    def _decode(self, tokens: list[int]) -> str:
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return self._known[key]


def _width(match: re.Match[str]) -> int | range:
    numbers = re.fullmatch(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?", "1" if match.group(1) is None else match.group(1))
    if numbers is None:
        raise UnmaskError(
            f"The blank '{match.group(0)}' is not [MASK], [MASK:n] or [MASK:n-m] with n at least 1; write it so."
        )
    low, high = int(numbers[1]), int(numbers[2] or numbers[1])
    if high < low:
        raise UnmaskError(f"The blank '{match.group(0)}' ends before it begins; write it as [MASK:{high}-{low}].")
    if high - low >= MOST_LENGTHS:
        raise UnmaskError(
            f"The blank '{match.group(0)}' has {high - low + 1} lengths to choose among and may have {MOST_LENGTHS}; "
            "narrow its range."
        )
    return low if low == high else range(low, high + 1)


SPACES = "Ġ▁"
"""How vocabularies of byte-level BPE and SentencePiece write a space."""


@dataclass(frozen=True)
class Generation:
    """One finished sequence. `order` is which of its network calls, from 0, wrote each token (-1: given), `confidence`
    its chance."""

    text: str
    ids: list[int]
    order: list[int]
    confidence: list[float]
    calls: int
    seed: int
    trajectory: list[list[int]] | None = None
    """The canvas before the first call and after each, where it was asked for."""


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

    def finished(self, seed: int) -> Generation:
        """What the last canvas of a walk with this seed is."""
        return Generation(self.text, self.ids, self.order, self.confidence, self.calls, seed)


class TextProcessor:
    """Knows a model's tokenizer, lengths and length policy, and nothing of its network."""

    def __init__(self, tokenizer: Any, model_config: Any, config: CheckpointConfig) -> None:
        self._tokenizer = tokenizer
        self.config = config
        self.mask = model_config.mask_token_id
        self.vocabulary = Vocabulary(tokenizer, model_config.vocab_size, self.mask, config.policy.ends_with_eos)
        self.limit = model_config.max_length
        """Tokens that the network can see at once."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, which verbs on texts need; converted weights may come without one."""
        if self._tokenizer is None:
            raise UnmaskError("This checkpoint has no tokenizer; convert it again and name one with --tokenizer.")
        if self._tokenizer.mask_token_id is None and not self.config.objective.causal:
            raise UnmaskError(
                f"The tokenizer of this checkpoint has no mask token, and the network's is {self.mask}; add one with "
                "that id (mask_token) and save the tokenizer again."
            )
        return self._tokenizer

    @property
    def length(self) -> int:
        """Tokens of a row, as the model was trained."""
        return min(self.config.length, self.limit)

    def room(self, length: int | None) -> int:
        """Tokens of the canvas that a user asks for."""
        length = self.length if length is None else length
        if length < 1:
            raise UnmaskError(f"A text of length {length} cannot be generated; ask for at least one token.")
        check_most(length=length)
        if length > self.limit and self.config.objective.causal:
            raise UnmaskError(
                f"A canvas of {length} tokens is longer than the {self.limit} of this model, and an autoregressive one "
                "is not written window by window; ask for at most that, or take a masked model."
            )
        return length

    def open_ids(self, ids: list[int], length: int, tail: list[int]) -> list[int]:
        """Given tokens and a tail, some of them masks, with masks between them, up to the length of the canvas.

        Where a length policy ends texts, a text that must end with a tail is shown its end, if the row has room.
        """
        if len(ids) + len(tail) > length:
            what = "The prompt and the suffix have" if tail else "The prompt has"
            given = len(ids) + len(tail)
            raise UnmaskError(f"{what} {given} tokens and the canvas {length}; shorten it or ask for a longer text.")
        if tail and self.config.objective.causal:
            raise UnmaskError("An autoregressive model cannot see a suffix; give it a prompt alone, or a masked model.")
        row = self.in_order([*ids, *[self.mask] * (length - len(ids) - len(tail)), *tail])
        return self.config.policy.append_eos(row, self.length, self.tokenizer.eos_token_id) if tail else row

    def parts(self, text: str) -> list[Part]:
        """The known pieces of a text and its `[MASK]`, `[MASK:n]` and `[MASK:n-m]` blanks.

        Where tokens begin with the space before a word, a blank takes that space along, as a word would.
        """
        parts = parse_blanks(checked_text(text))
        return without_spaces_before_blanks(parts) if self.spaces_lead else parts

    def blank_ids(self, parts: Sequence[Part], room: int | None = None) -> list[int]:
        """Token ids of a text whose blanks have their numbers of tokens; an error where they do not fit, if told."""
        blanks = [part for part in parts if isinstance(part, int)]
        if blanks and room is not None and (total := sum(blanks) + self.known(parts)) > room:
            raise UnmaskError(f"The text has {total} tokens with its blanks and there is room for {room}; shorten it.")
        known = iter(encode(self.tokenizer, [part for part in parts if isinstance(part, str)]))
        ids: list[int] = []
        for part in parts:
            assert not isinstance(part, range), "the length of every blank is settled"
            ids += next(known) if isinstance(part, str) else [self.mask] * part
        return ids

    def known(self, parts: Sequence[Part]) -> int:
        """Tokens of a text beside its blanks."""
        return sum(map(len, encode(self.tokenizer, [part for part in parts if isinstance(part, str)])))

    @cached_property
    def spaces_lead(self) -> bool:
        """Whether tokens begin with the space before a word, as those of byte-level BPE and SentencePiece do."""
        return any(len(token) > 1 and token[0] in SPACES for token in self.tokenizer.get_vocab())

    def blank_row(self, ids: list[int]) -> list[int]:
        """Tokens with masks where something is to be written, framed as the length policy frames a text.

        Rows that are filled up with EOS have no frame: where the text ends is not known (`goes_on`).
        """
        ids, policy, eos = self.readable(ids), self.config.policy, self.tokenizer.eos_token_id
        return ids if policy.supervises_padding else policy.append_eos(ids, self.length, eos)

    def readable(self, ids: list[int]) -> list[int]:
        """Tokens with masks among them; an error where this model does not know them or cannot see them all."""
        if len(ids) > self.limit:
            raise UnmaskError(f"The text has {len(ids)} tokens and this model reads {self.limit}; shorten it.")
        size = self.vocabulary.size
        strange = next((one for one in ids if not hasattr(one, "__index__") or not 0 <= one < size), None)
        if strange is not None:
            raise UnmaskError(f"This model has no token {strange!r}; give ids from 0 to {size - 1}.")
        return self.in_order(ids)

    def in_order(self, ids: list[int]) -> list[int]:
        """The same tokens with masks among them; an error where the order of this model cannot write them."""
        mask = self.mask
        if self.config.objective.causal and mask in ids and any(i != mask for i in ids[ids.index(mask) :]):
            raise UnmaskError("An autoregressive model cannot see what stands after a blank; fill with a masked one.")
        return ids

    def goes_on(self, denoiser: Any) -> Any:
        """A network as rows see it that are shorter than its own. To one that has learnt rows filled up with EOS, a
        piece of text is the beginning of a row: a row that ends with it would say that this is all there is."""
        learnt = self.config.policy.supervises_padding and not self.config.objective.causal
        return MaskPaddedDenoiser(denoiser, self.length) if learnt else denoiser

    def canvas(self, rows: list[list[int]], seed: int, device: torch.device) -> Canvas:
        """A canvas of ragged rows, padded on the right."""
        ids = _padded(rows, self.tokenizer.pad_token_id or 0, device)
        real = _padded([[True] * len(row) for row in rows], False, device)
        canvas = Canvas.of(ids, self.mask, seed, real)
        given = real & (ids != self.mask) & (ids != self.end_token)
        if self.ends_with is None:
            return replace(canvas, condition=given)
        no_eos = _padded([masks_before_text(row, self.mask, self.ends_with).tolist() for row in rows], False, device)
        return replace(canvas, no_eos=no_eos, condition=given)

    @property
    def end_token(self) -> int:
        """The token between texts or behind them; -1 where there is none."""
        eos = self.tokenizer.eos_token_id
        return -1 if eos is None else eos

    @property
    def ends_with(self) -> int | None:
        """The token with which a text ends, where the length policy has one."""
        return self.tokenizer.eos_token_id if self.config.policy.ends_with_eos else None

    def bind(self, constraint: Constraint | Sequence[Constraint] | None, rows: list[list[int]]) -> Automaton | None:
        """What one or several constraints ask of these rows; an error where one of the rows cannot satisfy them."""
        if constraint is None:
            return None
        return compile_constraints(
            as_constraints(constraint), self.vocabulary, [self.without_end(row) for row in rows], self.limit
        )

    def without_end(self, row: list[int]) -> list[int]:
        """What a constraint speaks of: a row, but for the end of the text that it is framed with for the network."""
        size = next((size for size in range(len(row), 0, -1) if row[size - 1] != self.ends_with), 0)
        return row[:size]

    def terms(self, constraint: Constraint | Sequence[Constraint] | None, longest: int) -> CompiledConstraints | None:
        """What one or several constraints ask of rows of at most so many tokens, to be asked about each."""
        return (
            None
            if constraint is None
            else CompiledConstraints(as_constraints(constraint), self.vocabulary, longest, self.limit)
        )

    def finish(self, state: State, length: int | None = None) -> list[Generation]:
        """What a finished walk wrote, sequence by sequence: of each the positions of its row that are not pads, up to
        the `length` that was asked for; EOS behind a suffix is the network's affair."""
        canvas = state.canvas
        columns = (x[:, :length] for x in (state.ids, state.order, state.confidence, canvas.attention_mask))
        rows = zip(*(_listed(column) for column in columns), state.calls.tolist(), canvas.seeds.tolist(), strict=True)
        done = []
        for ids, order, confidence, real, calls, seed in rows:
            size = sum(real)
            text = self.decode(ids[:size])
            done.append(Generation(text, ids[:size], order[:size], confidence[:size], calls, seed))
        return done

    def frame(self, state: State, reader: PieceReader, length: int | None = None) -> Frame:
        """What the one sequence of a walk looks like now, as `finish` would show it."""
        size = int(state.canvas.attention_mask[0, :length].sum())
        ids, order, confidence = (_listed(x[:, :size])[0] for x in (state.ids, state.order, state.confidence))
        pieces, end = reader.read(ids), self.text_end(ids)
        return Frame(self.decode(ids), ids, order, confidence, state.call, state.total, pieces, end)

    def decode(self, ids: list[int]) -> str:
        """The text of a canvas; where the length policy ends a text with EOS, up to the first one."""
        return decode_canvas(self.tokenizer, ids[: self.text_end(ids)], self.mask)

    def text_end(self, ids: list[int]) -> int:
        """Tokens of a canvas that are its text."""
        return ids.index(self.ends_with) if self.ends_with in ids else len(ids)

    def scored_rows(self, texts: list[str], given: str | Sequence[str] | None) -> Rows:
        """Rows whose texts are counted, each behind its condition."""
        ids = encode(self.tokenizer, texts)
        conditions = _paired(given, len(texts))
        for text, tokens in zip(texts, ids, strict=True):
            if not tokens:
                raise UnmaskError(f"The text {text!r} has no tokens, so it has no likelihood; give some text.")
        length, eos = self.length, self.tokenizer.eos_token_id
        if conditions is None:
            words = partial(encode_one, self.tokenizer)
            return rows_of_texts(self.config.policy, ids, length, eos, texts=texts, encode=words)
        return rows_given(self.config.policy, encode(self.tokenizer, conditions), ids, length, eos, texts=texts)


def checked_text(text: Any) -> str:
    """The text that a user gives as one."""
    if not isinstance(text, str):
        raise UnmaskError(f"{text!r} is no text; give a string.")
    return text


def checked_texts(texts: Any, verb: str) -> list[str]:
    """The text or texts that a user gives a verb."""
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise UnmaskError(f"{texts!r} is no text to {verb}; give a string, or a list of them.")
    every = [texts] if isinstance(texts, str) else [checked_text(text) for text in texts]
    if not every:
        raise UnmaskError(f"There are no texts to {verb}; give at least one.")
    return every


def _paired(given: str | Sequence[str] | None, count: int) -> list[str] | None:
    """One condition for each text."""
    if given is None:
        return None
    conditions = [given] * count if isinstance(given, str) else checked_texts(given, "condition on")
    if len(conditions) != count:
        raise UnmaskError(
            f"There are {count} texts and {len(conditions)} conditions; give one for each or one for all."
        )
    return conditions


def _padded(rows: Sequence[list[Any]], pad: Any, device: torch.device) -> Tensor:
    """[B, L] rows of any lengths, padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)


def _listed(column: Tensor) -> list[Any]:
    return column.tolist()
