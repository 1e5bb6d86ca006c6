"""Blanks in held-out functions, as tokens: which functions a checkpoint is asked about, and what is taken out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate

from unmask.data.functions import FunctionsSource
from unmask.data.sources import Document
from unmask.data.tokenizers import encode
from unmask.errors import UnmaskError, did_you_mean
from unmask.evaluation.code.syntax import PIECES, Body, Kind, Span
from unmask.evaluation.origin import trained_on
from unmask.generation import MaskedDiffusionLM
from unmask.templates import PieceReader

SIZES: dict[Kind, range] = {"expression": range(2, 9), "line": range(6, 21), "lines": range(21, 49)}
"""Tokens that a blank of each kind may have."""


@dataclass(frozen=True)
class Blank:
    """A function as tokens, of which those from `start` to before `end` are to be written."""

    name: str
    kind: Kind
    text: str
    ids: tuple[int, ...]
    start: int
    end: int

    @property
    def truth(self) -> tuple[int, ...]:
        """The tokens that were taken out."""
        return self.ids[self.start : self.end]

    def with_span(self, span: Sequence[int]) -> list[int]:
        """The function with other tokens in the blank."""
        return [*self.ids[: self.start], *span, *self.ids[self.end :]]


def code_of(lm: MaskedDiffusionLM) -> FunctionsSource:
    """The source of a checkpoint's training data, which must be that of functions."""
    return trained_on(lm, FunctionsSource, "functions", "'unmask train code'")


def check_twin(lm: MaskedDiffusionLM, twin: MaskedDiffusionLM) -> None:
    """A twin is asked to write the same tokens, so it must have learnt the same functions as the same tokens."""
    if code_of(twin) != code_of(lm) or twin.words.get_vocab() != lm.words.get_vocab():
        raise UnmaskError(
            f"The twin '{twin.path}' was trained on other functions or tokens; give one of the same data.source and "
            "data.tokenizer."
        )


def blanks_of(lm: MaskedDiffusionLM, kind: Kind, count: int, seed: int = 0) -> list[Blank]:
    """One blank of a kind in each of at most `count` held-out functions that fit into a row with their end.

    Which functions come first and what is blanked in one depends on the seed and its name alone.
    """
    source = code_of(lm)
    held_out = [document for document in source.documents() if source.held_out(document.name)]
    held_out.sort(key=lambda document: _draw(seed, "function", document.name))
    found: list[Blank] = []
    for document, ids in zip(held_out, encode(lm.words, [one.text for one in held_out]), strict=True):
        blank = blank_in(lm, document, ids, kind, seed) if len(ids) < lm.row_length else None
        found += [] if blank is None else [blank]
        if len(found) == count:
            return found
    if not found:
        raise UnmaskError(
            f"No held-out function with a blank of the kind '{kind}' fits into the {lm.row_length} tokens of "
            f"'{lm.path}'; give one that was trained with a longer data.length."
        )
    return found


def blank_in(lm: MaskedDiffusionLM, document: Document, ids: list[int], kind: Kind, seed: int) -> Blank | None:
    """One of the blanks of a kind that a function may have; None where it has none of the right size."""
    body = Body.of(document.text)
    places = _Places(PieceReader(lm.words, lm.scribe.mask).read(ids))
    spans = {places.covering(span) for span in PIECES[kind](body)}
    fit = sorted(span for span in spans if span[1] - span[0] in SIZES[kind] and places.starts[span[0]] >= body.start)
    if not fit:
        return None
    start, end = fit[_draw(seed, kind, document.name) % len(fit)]
    return Blank(document.name, kind, document.text, tuple(ids), start, end)


def parse_kinds(words: Sequence[str]) -> list[Kind]:
    """Kinds of blanks as a user writes them."""
    for word in words:
        if word not in PIECES:
            raise UnmaskError(f"There is no blank of the kind '{word}'.{did_you_mean(word, PIECES)}")
    return [kind for kind in PIECES if kind in words]


class _Places:
    """Where the tokens of a text begin and how far they reach; a part of a letter is where the letter will be."""

    def __init__(self, pieces: Sequence[str | None]) -> None:
        sizes = [len(piece or "") for piece in pieces]
        self.starts = [0, *accumulate(sizes)][:-1]
        self._reach = [start + max(1, size) for start, size in zip(self.starts, sizes, strict=True)]

    def covering(self, span: Span) -> Span:
        """The tokens, from one to before another, that hold some characters."""
        return bisect_right(self._reach, span[0]), bisect_left(self.starts, span[1])


def _draw(seed: int, purpose: str, name: str) -> int:
    """The same number below 2^64 for the same words, on every machine."""
    return int.from_bytes(blake2b(f"{seed}\n{purpose}\n{name}".encode(), digest_size=8).digest(), "big")
