"""Which files are read, in which order, and how they are decompressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from unmask import registry
from unmask.data.sources.text import TextSource
from unmask.errors import UnmaskError

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: zstandard.ZstdCompressor().compress(raw),
}


def read(path: Path | list[Path], **options: object) -> list[tuple[str, str]]:
    source = registry.build("source", {"name": "text", "paths": path, **options})
    return [(document.name, document.text) for document in source.documents()]


def test_folders_are_searched_in_sorted_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.txt").write_text("hidden")
    (tmp_path / "z.txt").write_text("z")
    (tmp_path / "c.log").write_text("a log")
    (tmp_path / "b" / "y.MD.GZ").write_bytes(gzip.compress(b"y"))
    (tmp_path / "b" / "a.txt.xz").write_bytes(lzma.compress(b"a"))
    (tmp_path / "empty.txt").write_text("")
    assert read(tmp_path) == [("b/a.txt.xz", "a"), ("b/y.MD.GZ", "y"), ("z.txt", "z")]
    assert read([tmp_path / "c.log", tmp_path / "b"])[0] == ("c.log", "a log"), "an explicit file is read as text"


def test_skipped_files_are_counted_by_suffix(tmp_path: Path) -> None:
    for name in ("x.pdf", "y.pdf", "photo.png", "Makefile", "all.tar.gz", ".hidden.pdf", "a.txt"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "program").write_bytes(b"\x7fELF\0")
    (tmp_path / "latin1").write_bytes(b"caf\xe9")
    os.mkfifo(tmp_path / "pipe.txt")
    assert read(tmp_path) == [("Makefile", "x"), ("a.txt", "x")]
    assert TextSource(paths=tmp_path).skipped_files() == {".pdf": 2, "": 2, ".png": 1, ".tar.gz": 1}
    assert TextSource(paths=tmp_path / "[xyp]*").skipped_files() == {"": 1}
    assert TextSource(paths=tmp_path / "x.pdf").skipped_files() == {}
    assert registry.build("source", "stdlib").skipped_files() == {}


def test_patterns_name_files_by_the_path_after_the_last_fixed_folder(tmp_path: Path) -> None:
    for name in ("a/b/x.md", "a/y.py", "a/z.txt", "a/.hidden.py", "q.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path / "a" / "*.[pt]*") == [("y.py", "a/y.py"), ("z.txt", "a/z.txt")]
    assert [name for name, _ in read(tmp_path / "**" / "*")] == ["a/b/x.md", "a/y.py", "a/z.txt", "q.txt"]
    assert [name for name, _ in read(tmp_path / "?" / "z.txt")] == ["a/z.txt"]
    with pytest.raises(UnmaskError, match=r"No file with text matches .*\*\.rst; check the pattern"):
        read(tmp_path / "*.rst")


@pytest.mark.parametrize("suffix", COMPRESS)
def test_concatenated_streams_are_one_file(tmp_path: Path, suffix: str) -> None:
    """As `cat a.gz b.gz` makes them; zstd may have a skippable frame between."""
    skipped = b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello" if suffix == ".zst" else b""
    text = b"one " * 200_000
    (tmp_path / f"a.txt{suffix}").write_bytes(COMPRESS[suffix](text) + skipped + COMPRESS[suffix](b"two"))
    assert read(tmp_path / f"a.txt{suffix}") == [(f"a.txt{suffix}", text.decode() + "two")]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.fa"])
def test_an_incomplete_file_is_an_error(tmp_path: Path, suffix: str, name: str) -> None:
    path = tmp_path / (name + suffix)
    line = {"a.txt": b"%s\n", "a.jsonl": b'"%s"\n', "a.fa": b">%s\nACGT\n"}[name]
    whole = COMPRESS[suffix](b"".join(line % os.urandom(8).hex().encode() for _ in range(4000)))
    for broken in (whole[: len(whole) // 2], whole[:-3], b"plain text"):
        path.write_bytes(broken)
        with pytest.raises(UnmaskError, match=rf"a\.\w+\{suffix} is not a complete \{suffix} file \(.*download or"):
            read(path)


@pytest.mark.parametrize("suffix", ["", *COMPRESS])
@pytest.mark.parametrize("separator", [None, "line", "--"])
def test_invalid_utf8_is_located(tmp_path: Path, suffix: str, separator: str | None) -> None:
    raw = b"\xef\xbb\xbf" + "é\n".encode() * 20_000 + b"\xff\n" + b"x\n" * 20_000
    (tmp_path / f"a.txt{suffix}").write_bytes(COMPRESS.get(suffix, bytes)(raw))
    path = tmp_path / f"a.txt{suffix}"
    with pytest.raises(UnmaskError, match=r"is not valid UTF-8 at byte 60003 \(.*encoding_errors=replace"):
        read(path, separator=separator)
    assert "".join(text for _, text in read(path, separator=separator, encoding_errors="replace")).count("\ufffd") == 1


def test_bad_paths_are_errors(tmp_path: Path) -> None:
    (tmp_path / "stories.txt").write_text("")
    (tmp_path / "folder").mkdir()
    for paths, message in (
        (tmp_path / "storys.txt", r"storys\.txt does not exist. Did you mean 'stories\.txt'\?"),
        (tmp_path / "nowhere" / "x.txt", "The folder .*nowhere does not exist either"),
        (tmp_path / "stories.txt", r"stories\.txt has no text in it"),
        (tmp_path / "folder", "has no files to read"),
        (tmp_path, "has no text in it"),
        ([], "has no paths"),
        ("/dev/zero", "/dev/zero is a pipe or a device"),
    ):
        with pytest.raises(UnmaskError, match=message):
            read(paths)


def test_zstandard_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.txt.zst").write_bytes(b"x")
    with pytest.raises(UnmaskError, match=r"needs the package zstandard; run: pip install 'unmask\[data\]'"):
        read(tmp_path / "a.txt.zst")
