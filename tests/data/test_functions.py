"""Functions of the standard library as a corpus: each once, as it is written, and whole packages held out."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from unmask.data import stdlib
from unmask.data.split import take_sides
from unmask.data.stdlib import FunctionsSource, functions_of, parse_function
from unmask.errors import UnmaskError

SOURCE = FunctionsSource()
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
def small_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(stdlib, "sysconfig", SimpleNamespace(get_path=lambda name: str(tmp_path)))
    return tmp_path


def test_functions_and_methods_are_moved_to_the_margin_as_they_are_written():
    found = list(functions_of(MODULE))
    assert [name for name, _ in found] == ["path", "path", "Outer.size", "Outer.Inner.wait", "lone"]
    texts = [text for _, text in found]
    assert texts[1] == "def path(b):\n    return b\n"
    assert texts[2].startswith('def size(self):\n    """How large."""\n\n    def inner():\n        return 1\n')
    assert texts[3] == "async def wait(self,\n               seconds=1):\n    # a comment stays\n    return seconds\n"
    assert texts[4] == "def lone(): return 0\n"


def test_what_cannot_be_parsed_has_no_functions():
    assert list(functions_of("def f(:\n  pass\n")) == []
    assert parse_function("def f():\n    pass\nx = 1\n") is None
    assert parse_function("x = 1\n") is None


def test_a_text_that_comes_twice_is_a_document_once(small_library: Path):
    (small_library / "json").mkdir()
    same = "def twice(a):\n    return a\n"
    (small_library / "json" / "__init__.py").write_text(same)
    (small_library / "zipfile.py").write_text(same + "\n\ndef own(a):\n    return 2 * a\n")
    names = [document.name for document in SOURCE.documents()]
    assert names == ["json:twice", "zipfile:own"]
    assert [SOURCE.held_out(name) for name in names] == [False, True]


def test_a_python_without_sources_is_an_error(small_library: Path):
    with pytest.raises(UnmaskError, match="has no source files; use the source 'text'"):
        SOURCE.documents()


def test_whole_packages_of_the_real_library_are_held_out_and_no_text_is_on_both_sides():
    sides = take_sides(SOURCE)
    train, held_out = (list(sides.split.part(validation)) for validation in (False, True))
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
