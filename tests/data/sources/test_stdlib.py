"""The standard library as a corpus: enough text, the same each time, with whole packages held out."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from unmask.data.documents import Document
from unmask.data.sources import Source
from unmask.data.sources.stdlib import FunctionsSource, StdlibSource, functions_of, parse_function, sysconfig
from unmask.data.split import split_source
from unmask.errors import UnmaskError

DOCSTRINGS, FUNCTIONS = StdlibSource(), FunctionsSource()
MODULE = '''
import os

if os.name == "nt":
    def path(a):
        return a
else:
    def path(b):
        return b

class Outer:
    @property
    def size(self):
        """How large."""

        def inner():
            return 1
        return inner()

    class Inner:
        async def wait(self,
                       seconds=1):
            # a comment stays
            return seconds

    def left(self):
        return """text
at the margin"""

def lone(): return 0
'''


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the standard library."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    before = set(sys.modules)
    documents = list(DOCSTRINGS.documents())
    imported = set(sys.modules) - before
    assert not imported.intersection(document.name for document in documents), "modules are read, not imported"
    return documents


def paragraphs(documents: list[Document]) -> set[str]:
    return {" ".join(part.split()) for document in documents for part in document.text.split("\n\n") if len(part) > 60}


def test_there_is_enough_text_with_good_names(documents: list[Document]) -> None:
    names = [document.name for document in documents]
    assert 1_200_000 < sum(len(document.text) for document in documents) < 4_000_000
    assert len(set(names)) == len(names)
    assert {"argparse", "json.decoder", "email", "topics.strings"} <= set(names)
    assert not [name for name in names if "test" in name.split(".") or name in ("this", "antigravity")]
    assert "Command-line parsing library" in next(d.text for d in documents if d.name == "argparse")


def test_about_a_tenth_is_held_out_by_package(documents: list[Document]) -> None:
    held_out = [document for document in documents if DOCSTRINGS.held_out(document.name)]
    training = [document for document in documents if not DOCSTRINGS.held_out(document.name)]
    share = sum(len(document.text) for document in held_out) / sum(len(document.text) for document in documents)
    assert 0.07 < share < 0.11
    assert any(document.name.startswith("topics.") for document in held_out)
    for name in ("json", "unittest", "xml", "email"):
        assert len({DOCSTRINGS.held_out(f"{name}{tail}") for tail in ("", ".a", ".b.c")}) == 1
    shared = paragraphs(held_out) & paragraphs(training)
    assert len(shared) < 0.01 * len(paragraphs(held_out)), "validation text is not in training"


def test_docstrings_come_in_the_order_of_the_source(library: Path) -> None:
    for folder in ("pkg", "test"):
        (library / folder).mkdir()
    (library / "test" / "x.py").write_text('"""No."""')
    (library / "pkg" / "__init__.py").write_text(
        '"""Module."""\nclass A:\n    """Class."""\n    def f(self):\n        """First\n        second."""\n'
        'try:\n    async def g():\n        r"""Guarded \\d."""\nexcept ImportError:\n    pass\n"not a docstring"\n'
    )
    (library / "pkg" / "broken.py").write_text("def (")
    expected = Document("pkg", "Module.\n\nClass.\n\nFirst\nsecond.\n\nGuarded \\d.")
    assert list(DOCSTRINGS.documents()) == [expected]


def test_functions_are_dedented_and_otherwise_unchanged() -> None:
    found = list(functions_of(MODULE))
    assert [name for name, _ in found] == ["path", "path", "Outer.size", "Outer.Inner.wait", "lone"]
    texts = [text for _, text in found]
    assert texts[1] == "def path(b):\n    return b\n"
    assert texts[2].startswith('def size(self):\n    """How large."""\n\n    def inner():\n        return 1\n')
    assert texts[3] == "async def wait(self,\n               seconds=1):\n    # a comment stays\n    return seconds\n"
    assert texts[4] == "def lone(): return 0\n"
    assert list(functions_of("def f(:\n  pass\n")) == []


def test_a_function_is_parsed_only_alone() -> None:
    assert parse_function("async def f():\n    pass\n").name == "f"
    for text in ("def f():\n    pass\nx = 1\n", "x = 1\n", "def f(:\n"):
        assert parse_function(text) is None


def test_a_text_that_occurs_twice_is_one_document(library: Path) -> None:
    (library / "json").mkdir()
    same = "def twice(a):\n    return a\n"
    (library / "json" / "__init__.py").write_text(same)
    (library / "zipfile.py").write_text(same + "\n\ndef own(a):\n    return 2 * a\n")
    names = [document.name for document in FUNCTIONS.documents()]
    assert names == ["json:twice", "zipfile:own"]
    assert [FUNCTIONS.held_out(name) for name in names] == [False, True]


@pytest.mark.parametrize("source", [DOCSTRINGS, FUNCTIONS])
def test_a_python_without_sources_is_an_error(library: Path, source: Source) -> None:
    with pytest.raises(UnmaskError, match="has no source files; use the source 'text'"):
        source.documents()


def test_functions_of_whole_packages_are_held_out() -> None:
    split = split_source(FUNCTIONS)
    train, held_out = (list(split.documents(validation)) for validation in (False, True))
    packages = [{document.name.partition(":")[0].partition(".")[0] for document in part} for part in (train, held_out)]
    assert len(packages[0]) > 100
    assert len(packages[1]) > 10
    assert not packages[0] & packages[1]
    assert not {document.text for document in train} & {document.text for document in held_out}
    characters = [sum(len(document.text) for document in part) for part in (train, held_out)]
    assert characters[0] > 4_000_000
    assert 0.04 < characters[1] / sum(characters) < 0.15
    for document in held_out[:50]:
        (node,) = ast.parse(document.text).body
        assert node.name == document.name.rpartition(":")[2].rpartition(".")[2]
