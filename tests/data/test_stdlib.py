"""The standard library as a corpus: enough of it, the same each time, and validation apart from training."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from unmask.data.sources import Document
from unmask.data.stdlib import StdlibSource, _modules, sysconfig
from unmask.errors import UnmaskError

SOURCE = StdlibSource()


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    before = set(sys.modules)
    documents = list(SOURCE.documents())
    imported = set(sys.modules) - before
    assert not imported.intersection(document.name for document in documents), "modules are read, not imported"
    return documents


def paragraphs(documents: list[Document]) -> set[str]:
    return {" ".join(part.split()) for document in documents for part in document.text.split("\n\n") if len(part) > 60}


def test_there_is_enough_text_with_good_names(documents: list[Document]) -> None:
    size = sum(len(document.text) for document in documents)
    names = [document.name for document in documents]
    assert 1_200_000 < size < 4_000_000
    assert len(set(names)) == len(names)
    assert {"argparse", "json.decoder", "email", "topics.strings"} <= set(names)
    assert not [name for name in names if "test" in name.split(".") or name in ("this", "antigravity")]
    assert "Command-line parsing library" in next(d.text for d in documents if d.name == "argparse")


def test_about_a_tenth_is_held_out_by_package(documents: list[Document]) -> None:
    held_out = [document for document in documents if SOURCE.held_out(document.name)]
    share = sum(len(document.text) for document in held_out) / sum(len(document.text) for document in documents)
    assert 0.07 < share < 0.11
    assert any(document.name.startswith("topics.") for document in held_out)
    for name in ("json", "unittest", "xml", "email"):
        assert len({SOURCE.held_out(f"{name}{tail}") for tail in ("", ".a", ".b.c")}) == 1


def test_validation_text_is_not_in_training(documents: list[Document]) -> None:
    held_out = paragraphs([document for document in documents if SOURCE.held_out(document.name)])
    training = paragraphs([document for document in documents if not SOURCE.held_out(document.name)])
    assert len(held_out & training) < 0.01 * len(held_out)


def test_docstrings_in_order_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "x.py").write_text('"""No."""')
    (tmp_path / "pkg" / "__init__.py").write_text(
        '"""Module."""\nclass A:\n    """Class."""\n    def f(self):\n        """First\n        second."""\n'
        'try:\n    async def g():\n        r"""Guarded \\d."""\nexcept ImportError:\n    pass\n"not a docstring"\n'
    )
    (tmp_path / "pkg" / "broken.py").write_text("def (")
    assert list(_modules(tmp_path)) == [Document("pkg", "Module.\n\nClass.\n\nFirst\nsecond.\n\nGuarded \\d.")]


def test_a_python_without_sources_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(UnmaskError, match="has no source files; use the source 'text'"):
        list(SOURCE.documents())
