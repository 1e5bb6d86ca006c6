"""The code that every machine with Python has: the functions of the standard library, one a document."""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from textwrap import dedent
from typing import Literal

from unmask.data.sources import Document, Source
from unmask.errors import UnmaskError

HELD_OUT_SHARE = 0.09
HELD_OUT_SALT = "held-out-149:"  # holds out 8 to 10 % of the text of Python 3.10 to 3.13, spread over some 25 names
SKIPPED_FOLDERS = {
    "__pycache__",
    "_bundled",
    "dist-packages",
    "encodings",
    "idle_test",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
}
SKIPPED_MODULES = {"__hello__", "__phello__", "antigravity", "this"}


class StdlibSource(Source):
    """Docstrings of the standard library and the topics of ``help()``: about two megabytes of English.

    One document per module holds its docstrings in the order of the source, a blank line between two; they are read
    from the source files with `ast`, and no module is imported. Tests, installed packages and code tables are left out.
    One document ``topics.<name>`` per topic of ``pydoc_data``; a topic that mostly repeats a longer one is left out.
    The documents depend only on the Python installation. Whole top-level packages (and topics) are held out.
    """

    name: Literal["stdlib"] = "stdlib"

    def documents(self) -> Iterator[Document]:
        """Modules in the order of their dotted names, then topics in the order of theirs."""
        return of_library(_documents)

    def held_out(self, name: str) -> bool:
        """True for about a tenth of the packages and topics, by a hash of the top-level name alone."""
        top = name if name.startswith("topics.") else name.partition(".")[0]
        digest = blake2b((HELD_OUT_SALT + top).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64


def of_library(read: Callable[[Path], Sequence[Document]]) -> Iterator[Document]:
    """What is read in the folder of the standard library; there are Pythons that come without its source."""
    root = Path(sysconfig.get_path("stdlib"))
    documents = read(root)
    if not documents:
        raise UnmaskError(f"The standard library in {root} has no source files; use the source 'text' instead.")
    return iter(documents)


@cache
def _documents(root: Path) -> tuple[Document, ...]:
    """Kept in memory, as parsing takes seconds and a corpus is read several times."""
    return (*_modules(root), *_topics(root / "pydoc_data" / "topics.py"))


def _modules(root: Path) -> Iterator[Document]:
    for name, path in sorted(source_files(root)):
        tree = _parse(path)
        text = "\n\n".join(_docstrings(tree)) if tree else ""
        if text:
            yield Document(name, text)


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """(dotted module name, file) of every module that is worth reading."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name.isidentifier() and name not in SKIPPED_FOLDERS]
        for file in files:
            stem, suffix = os.path.splitext(file)
            if suffix == ".py" and stem not in SKIPPED_MODULES and not stem.startswith("_sysconfigdata"):
                package = Path(folder).relative_to(root).parts
                yield ".".join(package if stem == "__init__" else (*package, stem)), Path(folder, file)


def _parse(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None where this Python cannot parse it (templates, say)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            return None


def _docstrings(tree: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The docstring of a module, class or function, then of those inside it, without half surrogates."""
    docstring = ast.get_docstring(tree)
    if docstring:
        yield docstring.encode("utf-8", "ignore").decode("utf-8")
    yield from _inner_docstrings(tree.body)


def _inner_docstrings(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings(statement)
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from _inner_docstrings(statement.body)


def _topics(path: Path) -> Iterator[Document]:
    tree = _parse(path)
    for statement in tree.body if tree else ():
        if isinstance(statement, ast.Assign):
            topics: dict[str, str] = ast.literal_eval(statement.value)
            paragraphs = {name: _paragraphs(text) for name, text in topics.items()}
            for name in sorted(topics):
                if not any(_repeats(paragraphs[name], other) for other in paragraphs.values()):
                    yield Document(f"topics.{name}", topics[name].strip())


def _paragraphs(text: str) -> frozenset[str]:
    return frozenset(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _repeats(topic: frozenset[str], other: frozenset[str]) -> bool:
    """Whether half of the topic's paragraphs stand in a longer one as well."""
    return len(other) > len(topic) and 2 * len(topic & other) >= len(topic)


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
        return of_library(_function_documents)

    def held_out(self, name: str) -> bool:
        """True for about a tenth of the packages, by a hash of the top-level name alone."""
        return StdlibSource().held_out(name.partition(":")[0])


def parse_module(text: str) -> ast.Module | None:
    """The syntax tree of a text; None where `ast.parse` refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


@cache
def _function_documents(root: Path) -> tuple[Document, ...]:
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
    tree, lines = parse_module(source), source.split("\n")
    for name, node in _functions(tree.body, "") if tree else ():
        text = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n"
        if not text[0].isspace():
            yield name, text


def parse_function(text: str) -> Function | None:
    """The syntax of a text that is one function and nothing else."""
    tree = parse_module(text)
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
