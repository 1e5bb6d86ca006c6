"""Blanks in held-out Python functions: expressions, lines and blocks, filled with each decoding strategy."""

from __future__ import annotations

import ast
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unmask.data.documents import Document
from unmask.data.encoding import encode
from unmask.data.sources.stdlib import FunctionsSource, parse_function, parse_module
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Estimate
from unmask.evaluation.tasks import (
    TOKEN_RULES,
    Columns,
    Strategy,
    TaskEvaluation,
    default_batch_size,
    summarize,
    training_source,
)
from unmask.text_processor import PieceReader

if TYPE_CHECKING:
    from unmask.likelihood import Progress
    from unmask.pipeline import MaskedDiffusionLM

BlankKind = Literal["expression", "line", "lines"]
SIZES: dict[BlankKind, range] = {"expression": range(2, 9), "line": range(6, 21), "lines": range(21, 49)}
"""Tokens per blank of each kind."""
Span = tuple[int, int]
"""Start, and end (exclusive)."""
MAX_FUNCTIONS = 500
"""Held-out functions per kind of blank used by default."""
RATES = ("parses", "exact", "same_tokens")


def body_spans(text: str, kind: BlankKind) -> tuple[list[Span], int]:
    """Character spans that may be blanked in the body of a function, and the start of the body's first line.

    An expression may be nested; a line is a statement on one line; lines are consecutive statements of a block, which
    take several lines. Docstrings are excluded, and a body on the line of its `def` has no spans.
    """
    function = parse_function(text)
    assert function is not None, "every document of the source is one function"
    lines = text.split("\n")
    line_starts = [0, *accumulate(len(line) + 1 for line in lines)]

    def offset(line: int, column: int) -> int:
        """`ast` counts lines from 1, and columns in UTF-8 bytes."""
        return line_starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(first: Any, last: Any) -> Span:
        return offset(first.lineno, first.col_offset), offset(last.end_lineno, last.end_col_offset)

    first = function.body[0]
    start = line_starts[first.lineno - 1]
    if text[start : offset(first.lineno, first.col_offset)].strip():
        return [], start
    if kind == "expression":
        return [span(node, node) for statement in function.body for node in _expressions(statement)], start
    spans = []
    for block in _blocks(function.body):
        for i, one in enumerate(block):
            if _is_string(one):
                continue
            if kind == "line":
                spans += [span(one, one)] if one.lineno == one.end_lineno else []
            else:
                spans += [span(one, last) for last in block[i:] if one.lineno != last.end_lineno]
    return spans, start


def _blocks(statements: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """A block and all blocks nested in it."""
    yield statements
    for statement in statements:
        for node in ast.walk(statement):
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(node, name, None)
                if isinstance(inner, list) and inner:
                    yield inner


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """An expression and those nested in it, except inside f-strings, which have no positions before Python 3.12."""
    if isinstance(node, ast.stmt) and _is_string(node):
        return
    if isinstance(node, ast.expr):
        yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _expressions(child)


def _is_string(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring or another bare string."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@dataclass(frozen=True)
class Blank:
    """A function as tokens; those from `start` to `end` (exclusive) are to be predicted."""

    name: str
    kind: BlankKind
    text: str
    ids: tuple[int, ...]
    start: int
    end: int

    @property
    def target(self) -> tuple[int, ...]:
        """The tokens that were removed."""
        return self.ids[self.start : self.end]

    def replace(self, span: Sequence[int]) -> list[int]:
        """The function with other tokens in the blank."""
        return [*self.ids[: self.start], *span, *self.ids[self.end :]]


def code_source(lm: MaskedDiffusionLM) -> FunctionsSource:
    """The source of a checkpoint's training data; raise `UnmaskError` unless it is one of functions."""
    return training_source(lm, FunctionsSource, "functions", "'unmask train code'")


def make_blanks(lm: MaskedDiffusionLM, kind: BlankKind, count: int, seed: int = 0) -> list[Blank]:
    """One blank in each of at most `count` held-out functions that fit into a row with their EOS.

    The order of functions and the blank in each depend on the seed and the function's name alone.
    """
    source = code_source(lm)
    held_out = [document for document in source.documents() if source.held_out(document.name)]
    held_out.sort(key=lambda document: _hash(seed, "function", document.name))
    blanks: list[Blank] = []
    encoded = encode(lm.text_processor.tokenizer, [one.text for one in held_out])
    for document, ids in zip(held_out, encoded, strict=True):
        if len(ids) < lm.row_length and (blank := make_blank(lm, document, ids, kind, seed)) is not None:
            blanks.append(blank)
        if len(blanks) == count:
            return blanks
    if not blanks:
        raise UnmaskError(
            f"No held-out function with a blank of the kind '{kind}' fits into the {lm.row_length} tokens of "
            f"'{lm.path}'; give a checkpoint with a longer data.length."
        )
    return blanks


def make_blank(lm: MaskedDiffusionLM, document: Document, ids: list[int], kind: BlankKind, seed: int) -> Blank | None:
    """One blank of a kind in a function, or None if it has none of the right size."""
    pieces = PieceReader(lm.text_processor.tokenizer, lm.text_processor.mask_token_id).read(ids)
    sizes = [len(piece or "") for piece in pieces]
    starts = [0, *accumulate(sizes)][:-1]
    # A token that is part of a character decodes to nothing, and counts as the character that follows.
    ends = [start + max(1, size) for start, size in zip(starts, sizes, strict=True)]
    spans, body_start = body_spans(document.text, kind)
    tokens = {(bisect_right(ends, first), bisect_left(starts, last)) for first, last in spans}
    fit = sorted(span for span in tokens if span[1] - span[0] in SIZES[kind] and starts[span[0]] >= body_start)
    if not fit:
        return None
    start, end = fit[_hash(seed, kind, document.name) % len(fit)]
    return Blank(document.name, kind, document.text, tuple(ids), start, end)


def _hash(seed: int, purpose: str, name: str) -> int:
    """A number below 2^64, the same on every machine."""
    return int.from_bytes(blake2b(f"{seed}\n{purpose}\n{name}".encode(), digest_size=8).digest(), "big")


@dataclass
class CodeEvaluation(TaskEvaluation):
    """Blanks by kind, in the tokens of the model `lm`."""

    lm: MaskedDiffusionLM

    @classmethod
    def of(
        cls,
        lm: MaskedDiffusionLM,
        kinds: Sequence[BlankKind] = tuple(SIZES),
        count: int = MAX_FUNCTIONS,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> CodeEvaluation:
        """Blanks in the held-out functions of a checkpoint's training data, at most `count` of each kind."""
        return cls({kind: make_blanks(lm, kind, count, seed) for kind in kinds}, lm, seed=seed, batch_size=batch_size)

    def check(self, lm: MaskedDiffusionLM) -> None:
        """Both models must have the same functions and the same tokens."""
        vocab, other = (one.text_processor.tokenizer.get_vocab() for one in (self.lm, lm))
        if code_source(lm) != code_source(self.lm) or vocab != other:
            raise UnmaskError(
                f"'{lm.path}' was trained on other functions or tokens; give a checkpoint of the same data.source and "
                "data.tokenizer."
            )

    def evaluate(
        self, lm: MaskedDiffusionLM, items: list[Blank], strategy: Strategy, progress: Progress | None
    ) -> dict[str, Estimate]:
        """Functions that parse, blanks filled exactly, right tokens, calls and seconds."""
        columns = fill_blanks(lm, items, strategy, self.seed, self.batch_size, progress)
        return summarize(columns, RATES, "tokens")

    def settings(self) -> dict[str, Any]:
        return {"source": "functions", "blanks": {kind: len(blanks) for kind, blanks in self.groups.items()}}


def masked_row(lm: MaskedDiffusionLM, blank: Blank) -> list[int]:
    """The function with masks in the blank, framed as in training; an autoregressive model sees only the prefix."""
    masks = [lm.text_processor.mask_token_id] * len(blank.target)
    if lm.causal:
        return [*blank.ids[: blank.start], *masks]
    eos = lm.text_processor.tokenizer.eos_token_id
    return lm.config.policy.append_eos(blank.replace(masks), lm.row_length, eos)


def fill_blanks(
    lm: MaskedDiffusionLM,
    blanks: Sequence[Blank],
    strategy: Strategy,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Columns:
    """Fill all blanks; blank i has the seed `seed + i`.

    Columns: `parses` (the function is valid Python), `exact` (it equals the original up to white space),
    `same_tokens`, `right_tokens`, `tokens`, `calls` and `seconds` (divided evenly).
    """
    since = time.perf_counter()
    generations = lm.fill_rows(
        [masked_row(lm, blank) for blank in blanks],
        seed=seed,
        batch_size=batch_size or default_batch_size(lm),
        progress=progress,
        sampler=None if lm.causal else strategy.build_sampler(lm),
        rule=TOKEN_RULES[strategy.rule],
    )
    seconds = (time.perf_counter() - since) / len(blanks)
    items = []
    for blank, generation in zip(blanks, generations, strict=True):
        span = generation.ids[blank.start : blank.end]
        text = filled_text(lm, blank, span)
        right = sum(a == b for a, b in zip(span, blank.target, strict=True))
        items.append(
            {
                "parses": parse_module(text) is not None,
                "exact": text.split() == blank.text.split(),
                "same_tokens": right == len(span),
                "right_tokens": right,
                "tokens": len(span),
                "calls": generation.calls,
                "seconds": seconds,
            }
        )
    return {name: np.array([item[name] for item in items], dtype=np.float64) for name in items[0]}


def filled_text(lm: MaskedDiffusionLM, blank: Blank, span: Sequence[int]) -> str:
    """The function with the tokens of a span in its blank, up to their first EOS."""
    tokenizer = lm.text_processor.tokenizer
    eos = tokenizer.eos_token_id
    kept = span[: span.index(eos)] if eos in span else span
    return tokenizer.decode(blank.replace(kept), clean_up_tokenization_spaces=False)
