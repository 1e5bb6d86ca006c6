"""How well a model fills blanks in functions it has not seen: which blanks, in which ways, what came of it."""

from __future__ import annotations

import ast
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.data.encoding import encode
from unmask.data.sources import Document
from unmask.data.stdlib import Function, FunctionsSource, parse_function, parse_module
from unmask.errors import UnmaskError, did_you_mean
from unmask.evaluation.perplexity import trained_on
from unmask.evaluation.statistics import LEVEL, Estimate, Values
from unmask.evaluation.tasks import RULES, Row, Strategy, at_once, contenders, costs, pooled, wilson
from unmask.likelihood import Progress
from unmask.pipeline import MaskedDiffusionLM
from unmask.plots.tasks import Panel, draw_code
from unmask.text_processor import Generation, PieceReader

Kind = Literal["expression", "line", "lines"]
Span = tuple[int, int]
"""From a character to before another."""


class Body:
    """The body of a function, without its docstring; a body that begins on the line of its `def` is none."""

    def __init__(self, text: str, function: Function) -> None:
        lines = text.split("\n")
        self._lines = [line.encode() for line in lines]
        self._starts = [0, *accumulate(len(line) + 1 for line in lines)]
        first = function.body[0]
        self.start = self._starts[first.lineno - 1]
        """The character with which the first line of the body begins, which no blank reaches over."""
        inside = not self._lines[first.lineno - 1][: first.col_offset].strip()
        self._statements = function.body if inside else []

    @classmethod
    def of(cls, text: str) -> Body:
        """The body of a text that is one function."""
        function = parse_function(text)
        assert function is not None, "a document of the source is one function"
        return cls(text, function)

    def expressions(self) -> Iterator[Span]:
        """Every expression, and those inside it."""
        for statement in self._statements:
            yield from (self._span(node, node) for node in _expressions(statement))

    def lines(self) -> Iterator[Span]:
        """Every statement that is one line."""
        for block in _blocks(self._statements):
            yield from (self._span(one, one) for one in block if one.lineno == one.end_lineno and not _is_text(one))

    def several_lines(self) -> Iterator[Span]:
        """Statements of one block that follow each other, or a single one, on several lines."""
        for block in _blocks(self._statements):
            runs = ((block[i], block[j]) for i in range(len(block)) for j in range(i, len(block)))
            yield from (self._span(a, b) for a, b in runs if a.lineno != b.end_lineno and not _is_text(a))

    def _span(self, first: ast.stmt | ast.expr, last: ast.stmt | ast.expr) -> Span:
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        return self._at(first.lineno, first.col_offset), self._at(last.end_lineno, last.end_col_offset)

    def _at(self, line: int, byte: int) -> int:
        """The parser counts lines from 1, and bytes in them."""
        return self._starts[line - 1] + len(self._lines[line - 1][:byte].decode())


PIECES: dict[Kind, Callable[[Body], Iterator[Span]]] = {
    "expression": Body.expressions,
    "line": Body.lines,
    "lines": Body.several_lines,
}


def _blocks(statements: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """A block and all blocks inside it."""
    yield statements
    for statement in statements:
        for part in ast.walk(statement):
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(part, name, None)
                if isinstance(inner, list) and inner:
                    yield inner


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions inside a piece of syntax; those of formatted strings have no places of their own before Python 3.12,
    and a string that stands alone is no code."""
    if isinstance(node, ast.stmt) and _is_text(node):
        return
    if isinstance(node, ast.expr):
        yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _expressions(child)


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, or any other string that stands alone."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


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
    if (
        code_of(twin) != code_of(lm)
        or twin.text_processor.tokenizer.get_vocab() != lm.text_processor.tokenizer.get_vocab()
    ):
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
    for document, ids in zip(
        held_out, encode(lm.text_processor.tokenizer, [one.text for one in held_out]), strict=True
    ):
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
    places = _Places(PieceReader(lm.text_processor.tokenizer, lm.text_processor.mask).read(ids))
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


@dataclass(frozen=True)
class Filled:
    """What became of n blanks: [n] whether the function parses, whether the blank holds what it held (but for white
    space; to the token), tokens that are right and that were asked, network calls, and a share of the seconds."""

    parses: Values
    exact: Values
    same_tokens: Values
    right_tokens: Values
    tokens: Values
    calls: Values
    seconds: Values


def row_of(lm: MaskedDiffusionLM, blank: Blank) -> list[int]:
    """What a model is shown: the function with masks in the blank and its end behind it, as in training; a model that
    reads from left to right is not shown what follows the blank."""
    masks = [lm.text_processor.mask] * len(blank.truth)
    if lm.causal:
        return [*blank.ids[: blank.start], *masks]
    return lm.config.policy.append_eos(blank.with_span(masks), lm.row_length, lm.text_processor.tokenizer.eos_token_id)


def fill(
    lm: MaskedDiffusionLM,
    blanks: Sequence[Blank],
    way: Strategy,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Filled:
    """Let a model fill all blanks; blank i has the seed `seed + i`."""
    since = time.perf_counter()
    written = lm.fill_rows(
        [row_of(lm, blank) for blank in blanks],
        seed=seed,
        batch_size=at_once(lm, batch_size),
        progress=progress,
        sampler=None if lm.causal else way.on(lm),
        rule=RULES[way.rule],
    )
    seconds = (time.perf_counter() - since) / len(blanks)
    judged = [(*_judged(lm, blank, one), one.calls, seconds) for blank, one in zip(blanks, written, strict=True)]
    return Filled(*(np.array(column, dtype=np.float64) for column in zip(*judged, strict=True)))


def _judged(lm: MaskedDiffusionLM, blank: Blank, written: Generation) -> tuple[bool, bool, bool, int, int]:
    """The columns of `Filled` that one blank alone decides."""
    span = written.ids[blank.start : blank.end]
    text = text_with(lm, blank, span)
    right = sum(a == b for a, b in zip(span, blank.truth, strict=True))
    same_words = text.split() == blank.text.split()
    return parse_module(text) is not None, same_words, right == len(span), right, len(span)


def text_with(lm: MaskedDiffusionLM, blank: Blank, span: Sequence[int]) -> str:
    """The function with tokens in its blank, up to the first EOS among them: who ends there has written less."""
    eos = lm.text_processor.tokenizer.eos_token_id
    kept = span[: span.index(eos)] if eos in span else span
    return lm.text_processor.tokenizer.decode(blank.with_span(kept), clean_up_tokenization_spaces=False)


RATES = ("parses", "exact", "same_tokens")


@dataclass(frozen=True)
class CodeRow(Row):
    """One way, the kind of blanks, and what came of it."""

    kind: Kind = "line"


def figures_of(filled: Filled) -> dict[str, Estimate]:
    """Functions that parse, blanks filled exactly (but for white space; to the token), tokens right (bootstrap over
    blanks), calls and seconds a blank."""
    return {
        **{name: wilson(getattr(filled, name)) for name in RATES},
        "tokens": pooled(filled.right_tokens, filled.tokens),
        **costs(filled.calls, filled.seconds),
    }


DRAWN_RATES = {"parses": "functions that parse", "exact": "blanks filled exactly"}


def draw(rows: Sequence[CodeRow], path: Path) -> None:
    """Draw all rows."""
    draw_code(panels(rows), path)


def panels(rows: Sequence[CodeRow]) -> list[list[Panel]]:
    """A line of panels for each rate, one panel for each kind of blank."""
    by_kind: dict[str, list[CodeRow]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    return [
        [Panel(kind, words, contenders(of, rate)) for kind, of in by_kind.items()]
        for rate, words in DRAWN_RATES.items()
    ]


COUNT = 500
"""How many functions are asked about for each kind of blank unless told, where there are as many."""


@dataclass
class CodeEvaluation:
    """The blanks of each kind, and the rows of all who have filled them so far."""

    home: MaskedDiffusionLM
    """Whose tokens the blanks are."""
    blanks: dict[Kind, list[Blank]]
    seed: int = 0
    batch_size: int | None = None
    rows: list[CodeRow] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        lm: MaskedDiffusionLM,
        kinds: Sequence[Kind] = tuple(SIZES),
        count: int = COUNT,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> CodeEvaluation:
        """Blanks in the held-out functions of what a model was trained on, at most `count` of each kind."""
        return cls(lm, {kind: blanks_of(lm, kind, count, seed) for kind in kinds}, seed, batch_size)

    @property
    def size(self) -> int:
        """Blanks of all kinds."""
        return sum(map(len, self.blanks.values()))

    def admit(self, lm: MaskedDiffusionLM) -> None:
        """Refuse a model that has learnt other functions, or the same as other tokens."""
        check_twin(self.home, lm)

    def enter(self, lm: MaskedDiffusionLM, ways: Sequence[Strategy], progress: Progress | None = None) -> None:
        """Let a model fill the blanks in each of the ways."""
        self.admit(lm)
        for kind, blanks in self.blanks.items():
            for way in ways:
                filled = fill(lm, blanks, way, self.seed, self.batch_size, progress)
                self.rows.append(CodeRow.of(lm, way, len(blanks), figures_of(filled), kind=kind))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what was asked, and the rows."""
        counts = {kind: len(blanks) for kind, blanks in self.blanks.items()}
        return {
            "source": "functions",
            "blanks": counts,
            "seed": self.seed,
            "interval": {"level": LEVEL},
            "rows": [row.as_dict() for row in self.rows],
        }
