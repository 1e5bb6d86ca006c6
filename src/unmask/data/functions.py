"""The code that every machine with Python has: the functions of the standard library, one a document."""

from __future__ import annotations

import ast
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Literal

from unmask.data.sources import Document, Source
from unmask.data.stdlib import StdlibSource, of_library, source_files

Function = ast.FunctionDef | ast.AsyncFunctionDef


class FunctionsSource(Source):
    """Functions and methods of the standard library as they are written: some fourteen thousand, seven megabytes.

    One document ``package.module:Class.method`` per function, from its ``def`` to the end of its last line, moved to
    the left margin; decorators stay behind, and functions inside functions belong to these. A text that comes more than
    once is a document where it comes first, so that none is both for training and held out. No module is imported.
    Whole top-level packages are held out, those of the source `stdlib`.
    """

    name: Literal["functions"] = "functions"

    def documents(self) -> Iterator[Document]:
        """Functions in the order of the dotted names of their modules, then of the source."""
        return of_library(_documents)

    def held_out(self, name: str) -> bool:
        """True for about a tenth of the packages, by a hash of the top-level name alone."""
        return StdlibSource().held_out(name.partition(":")[0])


def parsed(text: str) -> ast.Module | None:
    """The syntax tree of a text; None where `ast.parse` refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


@cache
def _documents(root: Path) -> tuple[Document, ...]:
    """Kept in memory, as parsing takes seconds and a corpus is read several times."""
    found: dict[str, Document] = {}
    for module, path in sorted(source_files(root)):
        for name, text in functions_of(_read(path)):
            found.setdefault(text, Document(f"{module}:{name}", text))
    return tuple(found.values())


def _read(path: Path) -> str:
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError, OSError):
        return ""


def functions_of(source: str) -> Iterator[tuple[str, str]]:
    """(qualified name, text) of every function of a module; none of one that this Python cannot parse.

    Where a text inside the function stands left of it, so that it cannot be moved to the margin, it is left out.
    """
    tree, lines = parsed(source), source.split("\n")
    for name, node in _functions(tree.body, "") if tree else ():
        text = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n"
        if not text[0].isspace():
            yield name, text


def function_in(text: str) -> Function | None:
    """The syntax of a text that is one function and nothing else."""
    tree = parsed(text)
    alone = tree.body[0] if tree is not None and len(tree.body) == 1 else None
    return alone if isinstance(alone, Function) else None


def _functions(statements: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    for statement in statements:
        if isinstance(statement, Function):
            yield prefix + statement.name, statement
        elif isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.If | ast.Try):
            yield from _functions([*statement.body, *statement.orelse], prefix)
