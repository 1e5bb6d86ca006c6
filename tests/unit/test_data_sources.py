"""Files, folders and standard input become documents; what is wrong with them is said in a sentence."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import sys
from pathlib import Path

import pytest

from unmask import registry
from unmask.data.sources import Document, StdinSource, TextSource
from unmask.errors import UnmaskError


def read(path: Path | list[Path], **options: object) -> list[tuple[str, str]]:
    source = registry.build("source", {"name": "text", "paths": path, **options})
    first = [(document.name, document.text) for document in source.documents()]
    assert first == [(document.name, document.text) for document in source.documents()], "a source can be read again"
    return first


def test_a_file_is_one_document_and_keeps_every_byte(tmp_path: Path) -> None:
    text = "Zeile\r\n\x00 \U0001f600 end\n\n"
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert read(tmp_path / "a.txt") == [("a.txt", text)]


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfword")
    assert read(tmp_path / "a.txt") == [("a.txt", "word")]


def test_folders_are_walked_in_sorted_order_and_unpacked(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.txt").write_text("hidden")
    (tmp_path / "z.txt").write_text("z")
    (tmp_path / "c.csv").write_text("not text")
    (tmp_path / "b" / "y.md.gz").write_bytes(gzip.compress(b"y"))
    (tmp_path / "b" / "a.txt.xz").write_bytes(lzma.compress(b"a"))
    (tmp_path / "empty.txt").write_text("")
    assert read(tmp_path) == [("b/a.txt.xz", "a"), ("b/y.md.gz", "y"), ("z.txt", "z")]
    assert read([tmp_path / "c.csv", tmp_path / "b"])[0] == ("c.csv", "not text")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_equal_to_the_separator_separates(tmp_path: Path, end: str) -> None:
    lines = ["one", "still <|end|> one", "<|end|>", "<|end|>", " ", "<|end|>", "", "last"]
    (tmp_path / "a.txt").write_bytes(end.join(lines).encode())
    texts = [f"one{end}still <|end|> one", " ", f"{end}last"]
    expected = [(f"a.txt#{number}", text) for number, text in enumerate(texts)]
    assert read(tmp_path / "a.txt", separator="<|end|>") == expected


def test_lines_and_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\n \nthree\n")
    assert [text for _, text in read(tmp_path / "a.txt", separator="line")] == ["one", "two", " ", "three"]
    assert [text for _, text in read(tmp_path / "a.txt", separator="paragraph")] == ["one\ntwo", "three"]


@pytest.mark.parametrize(("separator", "offset"), [(None, 9), ("line", 9), ("--", 9)])
def test_invalid_utf8_names_file_byte_and_remedy(tmp_path: Path, separator: str | None, offset: int) -> None:
    (tmp_path / "a.txt").write_bytes(b"first\n--\n\xff word")
    with pytest.raises(UnmaskError, match=rf"a\.txt is not valid UTF-8 at byte {offset} .*encoding_errors=replace"):
        read(tmp_path / "a.txt", separator=separator)
    assert read(tmp_path / "a.txt", separator=separator, encoding_errors="replace")[-1][1].endswith("\ufffd word")


def test_missing_path_suggests_the_near_name(tmp_path: Path) -> None:
    (tmp_path / "stories.txt").write_text("x")
    with pytest.raises(UnmaskError, match=r"storys\.txt does not exist. Did you mean 'stories\.txt'\?"):
        TextSource(paths=str(tmp_path / "storys.txt")).documents()
    with pytest.raises(UnmaskError, match="no folder"):
        TextSource(paths=str(tmp_path / "nowhere" / "x.txt")).documents()


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UnmaskError, match=r"empty\.txt has no text"):
        read(tmp_path / "empty.txt")
    with pytest.raises(UnmaskError, match="has no text files"):
        read(tmp_path / "folder")
    with pytest.raises(UnmaskError, match="no text in it"):
        read(tmp_path)
    with pytest.raises(UnmaskError, match="no paths"):
        TextSource(paths=[]).documents()


@pytest.mark.parametrize(("name", "pack"), [("a.txt.gz", gzip.compress), ("a.txt.xz", lzma.compress)])
def test_a_broken_archive_is_named(tmp_path: Path, name: str, pack: object) -> None:
    (tmp_path / name).write_bytes(pack(os.urandom(5000))[:2000])  # type: ignore[operator]
    with pytest.raises(UnmaskError, match="not a complete"):
        read(tmp_path / name, encoding_errors="replace")
    (tmp_path / name).write_bytes(b"plain text")
    with pytest.raises(UnmaskError, match="not a complete"):
        read(tmp_path / name)


@pytest.mark.parametrize("separator", ["", "two\nlines"])
def test_a_separator_is_one_line(separator: str) -> None:
    with pytest.raises(UnmaskError, match="separator"):
        registry.build("source", {"name": "text", "paths": "x", "separator": separator})


def test_stdin_is_read_once_and_walked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    source = StdinSource(separator="line")
    expected = [Document("stdin#0", "one"), Document("stdin#1", "two")]
    assert list(source.documents()) == expected
    assert list(source.documents()) == expected


def test_empty_stdin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UnmaskError, match="Standard input is empty"):
        list(StdinSource().documents())
