"""Files, folders and standard input become documents; what is wrong with them is said in a sentence."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import subprocess
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
    (tmp_path / "c.log").write_text("not text")
    (tmp_path / "b" / "y.md.gz").write_bytes(gzip.compress(b"y"))
    (tmp_path / "b" / "a.txt.xz").write_bytes(lzma.compress(b"a"))
    (tmp_path / "empty.txt").write_text("")
    assert read(tmp_path) == [("b/a.txt.xz", "a"), ("b/y.md.gz", "y"), ("z.txt", "z")]
    assert read([tmp_path / "c.log", tmp_path / "b"])[0] == ("c.log", "not text")


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
    with pytest.raises(UnmaskError, match="has no files to read"):
        read(tmp_path / "folder")
    with pytest.raises(UnmaskError, match="no text in it"):
        read(tmp_path)
    with pytest.raises(UnmaskError, match="no paths"):
        TextSource(paths=[]).documents()


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


PROGRAM = """
import tempfile
from pathlib import Path
from unmask.data.sources import StdinSource
from unmask.data.sources import base as pieces
pieces.PIECE = 1000
first, again = ([d for d in StdinSource().documents()] for _ in range(2))
assert first == again and len(first) > 100 and [d.more for d in first] == [True] * (len(first) - 1) + [False]
(kept,) = Path(tempfile.gettempdir()).iterdir()
print(len("".join(d.text for d in first)), (kept / "text").stat().st_size)
"""


def test_stdin_is_kept_on_disk_until_the_program_ends(tmp_path: Path) -> None:
    text = "words and " * 20_000
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.split() == [str(len(text))] * 2
    assert list(tmp_path.iterdir()) == []


def test_two_sources_share_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert [document.text for document in StdinSource().documents()] == ["one\ntwo\n"]
    assert [document.text for document in StdinSource(separator="line").documents()] == ["one", "two"]


def test_bad_bytes_of_stdin_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\xff")))
    with pytest.raises(UnmaskError, match="Standard input is not valid UTF-8 at byte 3"):
        list(StdinSource().documents())


def test_stdin_that_cannot_be_kept_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*streams: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one")))
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(UnmaskError, match=r"could not be kept in .* \(No space left on device\); .*TMPDIR"):
        list(StdinSource().documents())


def test_empty_stdin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UnmaskError, match="Standard input is empty"):
        list(StdinSource().documents())
