"""The pieces of a function's body that may be blanked, by what the parser calls them. Characters only; no tokens."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Literal

from unmask.data.functions import Function, function_in

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
        function = function_in(text)
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
