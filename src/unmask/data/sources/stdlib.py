"""Text that every Python installation has: docstrings and functions of the standard library."""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Literal

from unmask.data.documents import Document, hash_fraction
from unmask.data.sources import Source
from unmask.errors import UnmaskError

HELD_OUT_SHARE = 0.09
HELD_OUT_SALT = "held-out-149:"  # holds out 8 to 10 % of the text of Python 3.10 to 3.13, from about 25 packages
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

Function = ast.FunctionDef | ast.AsyncFunctionDef


class StdlibSource(Source):
    """Docstrings of the standard library and the topics of ``help()``: about two megabytes of English.

    A document per module holds its docstrings in the order of the source, separated by blank lines. They are read with
    `ast`; no module is imported. Tests, installed packages and code tables are left out. Each topic of ``pydoc_data``
    is a document ``topics.<name>``, unless it mostly repeats a longer one. The documents depend only on the Python
    installation. Whole top-level packages, and topics, are held out.
    """

    name: Literal["stdlib"] = "stdlib"

    def documents(self) -> Iterator[Document]:
        """Yield modules in the order of their dotted names, then topics in the order of theirs."""
        return _read_library(_docstring_documents)

    def held_out(self, name: str) -> bool:
        """Return True for about a tenth of the packages and topics, by a hash of the top-level name."""
        top = name if name.startswith("topics.") else name.partition(".")[0]
        return hash_fraction((HELD_OUT_SALT + top).encode()) < HELD_OUT_SHARE


class FunctionsSource(Source):
    """Functions and methods of the standard library: about fourteen thousand, seven megabytes.

    Each function is a document ``package.module:Class.method``, from its ``def`` to its last line, dedented. Decorators
    are left out, and nested functions belong to the outer one. Of equal texts only the first is a document, so none is
    both in training and in validation. The packages held out are those of `stdlib`.
    """

    name: Literal["functions"] = "functions"

    def documents(self) -> Iterator[Document]:
        """Yield functions in the order of the dotted names of their modules, then of the source."""
        return _read_library(_function_documents)

    def held_out(self, name: str) -> bool:
        """Return True for about a tenth of the packages, by a hash of the top-level name."""
        return StdlibSource().held_out(name.partition(":")[0])


def _read_library(read: Callable[[Path], Sequence[Document]]) -> Iterator[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    documents = read(root)
    if not documents:
        raise UnmaskError(f"The standard library in {root} has no source files; use the source 'text' instead.")
    return iter(documents)


def parse_module(source: str | bytes) -> ast.Module | None:
    """Return the syntax tree of a module; None where this Python cannot parse it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def parse_function(text: str) -> Function | None:
    """Return the syntax tree of a text that is a single function; None for any other text."""
    tree = parse_module(text)
    statement = tree.body[0] if tree is not None and len(tree.body) == 1 else None
    return statement if isinstance(statement, Function) else None


def _source_files(root: Path) -> list[tuple[str, Path]]:
    """Return (dotted module name, file) of every module to read, sorted."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name.isidentifier() and name not in SKIPPED_FOLDERS]
        for file in files:
            stem, suffix = os.path.splitext(file)
            if suffix == ".py" and stem not in SKIPPED_MODULES and not stem.startswith("_sysconfigdata"):
                package = Path(folder).relative_to(root).parts
                found.append((".".join(package if stem == "__init__" else (*package, stem)), Path(folder, file)))
    return sorted(found)


@cache  # parsing takes seconds, and a corpus is read several times
def _docstring_documents(root: Path) -> tuple[Document, ...]:
    modules = []
    for name, path in _source_files(root):
        tree = parse_module(path.read_bytes())
        if tree and (text := "\n\n".join(_docstrings(tree))):
            modules.append(Document(name, text))
    return (*modules, *_topics(root / "pydoc_data" / "topics.py"))


def _docstrings(tree: ast.Module | ast.ClassDef | Function) -> Iterator[str]:
    """Yield the docstring of a module, class or function, then those inside it, without lone surrogates."""
    if docstring := ast.get_docstring(tree):
        yield docstring.encode("utf-8", "ignore").decode("utf-8")
    yield from _inner_docstrings(tree.body)


def _inner_docstrings(statements: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.ClassDef | Function):
            yield from _docstrings(statement)
        elif isinstance(statement, ast.If | ast.Try):
            yield from _inner_docstrings(statement.body)


def _topics(path: Path) -> Iterator[Document]:
    tree = parse_module(path.read_bytes()) if path.is_file() else None
    for statement in tree.body if tree else ():
        if not isinstance(statement, ast.Assign):
            continue
        topics: dict[str, str] = ast.literal_eval(statement.value)
        paragraphs = {
            name: frozenset(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
            for name, text in topics.items()
        }
        for name in sorted(topics):
            own = paragraphs[name]
            longer = (other for other in paragraphs.values() if len(other) > len(own))
            if not any(2 * len(own & other) >= len(own) for other in longer):
                yield Document(f"topics.{name}", topics[name].strip())


@cache
def _function_documents(root: Path) -> tuple[Document, ...]:
    found: dict[str, Document] = {}
    for module, path in _source_files(root):
        try:
            with tokenize.open(path) as file:
                source = file.read()
        except (SyntaxError, UnicodeDecodeError):
            continue
        for name, text in functions_of(source):
            found.setdefault(text, Document(f"{module}:{name}", text))
    return tuple(found.values())


def functions_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield (qualified name, text) of every function of a module.

    A function that cannot be dedented, because a string in it starts further left, is left out.
    """
    tree, lines = parse_module(source), source.split("\n")
    for name, node in _functions(tree.body, "") if tree else ():
        text = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n"
        if not text[0].isspace():
            yield name, text


def _functions(statements: Sequence[ast.stmt], prefix: str) -> Iterator[tuple[str, Function]]:
    for statement in statements:
        if isinstance(statement, Function):
            yield prefix + statement.name, statement
        elif isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.If | ast.Try):
            yield from _functions([*statement.body, *statement.orelse], prefix)
