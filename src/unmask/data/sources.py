"""Where text comes from: files, folders and standard input.

A source yields the same documents in the same order every time it is asked, since a corpus is read more than once (to
split it, to train a tokenizer, to encode it). Text is UTF-8 and is kept as it is, line ends included, with two
exceptions: a byte-order mark at the start of a file is dropped, and the line end just before a separator (or before the
end of a file that is cut by one) belongs to the separator, not to the document.
"""

from __future__ import annotations

import contextlib
import difflib
import gzip
import io
import lzma
import os
import sys
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal

from pydantic import field_validator

from unmask.errors import UnmaskError, did_you_mean
from unmask.registry import Component

SUFFIXES = tuple(kind + packing for kind in (".txt", ".md") for packing in ("", ".gz", ".xz"))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """One text with a name that says where it is from.

    A long text comes as several of the same name, one after the other, all but the last with ``more``.
    """

    name: str
    text: str
    more: bool = False


class Source(Component):
    """What every source is: documents, and perhaps an opinion on which of them are for validation."""

    lasting: ClassVar[bool] = True
    """Whether another program run can read the same documents again."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """All documents, in one fixed order, from the start at each call."""

    def held_out(self, name: str) -> bool | None:
        """Whether the document is for validation; None leaves that to the split."""
        return None

    def split_key(self, name: str) -> str:
        """What the split goes by: documents with the same key are on the same side."""
        return name


class _SeparatedText(Source):
    """Options of the sources that read plain text.

    separator: None, one file is one document; ``'line'``, each line is; ``'paragraph'``, blank (or all-white) lines
    separate; any other text, a line equal to it separates. A document without any character is dropped; one of white
    space alone is kept.
    encoding_errors: ``'strict'`` refuses bytes that are not UTF-8, ``'replace'`` puts U+FFFD in their place.
    """

    separator: str | None = None
    encoding_errors: Literal["strict", "replace"] = "strict"

    @field_validator("separator")
    @classmethod
    def _is_one_line(cls, separator: str | None) -> str | None:
        if separator is not None and (not separator or "\n" in separator or "\r" in separator):
            raise ValueError("a separator is one line of text, 'line' or 'paragraph'")
        return separator

    def _documents_of(self, stream: BinaryIO, where: str, name: str) -> Iterator[Document]:
        number = 0
        for offset, raw in _pieces(stream, self.separator):
            text = self._decode(raw, offset, where)
            if text:
                yield Document(name if self.separator is None else f"{name}#{number}", text)
                number += 1

    def _decode(self, raw: bytes, offset: int, where: str) -> str:
        if offset == 0 and raw.startswith(BYTE_ORDER_MARK):
            raw, offset = raw[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
        try:
            return raw.decode("utf-8", self.encoding_errors)
        except UnicodeDecodeError as error:
            raise UnmaskError(
                f"{where} is not valid UTF-8 at byte {offset + error.start} ({error.reason}); "
                "convert it to UTF-8 or set encoding_errors=replace."
            ) from error


class TextSource(_SeparatedText):
    """Text files, and folders of them.

    paths: a file or folder, or a list of them. A folder is walked to its depth, in sorted order, for ``*.txt`` and
    ``*.md``, also as ``.gz`` or ``.xz``; names that begin with a dot are left out. A file that is named is read
    whatever its suffix. Documents are named by the path inside the folder (or the file's name), with ``#number`` where
    a separator cuts files: a corpus that moves keeps its names.
    """

    name: Literal["text"] = "text"
    paths: str | list[str]

    @field_validator("paths", mode="before")
    @classmethod
    def _as_text(cls, paths: Any) -> Any:
        if isinstance(paths, (list, tuple)):
            return [os.fspath(path) if isinstance(path, os.PathLike) else path for path in paths]
        return os.fspath(paths) if isinstance(paths, os.PathLike) else paths

    def documents(self) -> Iterator[Document]:
        """All documents; a path that does not exist or a folder without texts is reported before the first."""
        paths = [self.paths] if isinstance(self.paths, str) else self.paths
        if not paths:
            raise UnmaskError("The source 'text' has no paths; name at least one file or folder.")
        return self._read([_find(Path(path).expanduser()) for path in paths])

    def _read(self, found: list[_Found]) -> Iterator[Document]:
        for path, files in found:
            empty = True
            for file in files:
                name = file.name if file == path else file.relative_to(path).as_posix()
                with _reading(file) as stream:
                    for document in self._documents_of(stream, str(file), name):
                        empty = False
                        yield document
            if empty:
                raise UnmaskError(f"{path} has no text in it; name a file or folder with text.")


class StdinSource(_SeparatedText):
    """Standard input, read once and kept, so that it can be walked again."""

    name: Literal["stdin"] = "stdin"
    lasting: ClassVar[bool] = False

    @cached_property
    def _raw(self) -> bytes:
        return sys.stdin.buffer.read()

    def documents(self) -> Iterator[Document]:
        """The documents of standard input; an empty one is an error."""
        documents = self._documents_of(io.BytesIO(self._raw), "Standard input", "stdin")
        first = next(documents, None)
        if first is None:
            raise UnmaskError("Standard input is empty; pipe a text into it or name a file.")
        yield first
        yield from documents


_Found = tuple[Path, list[Path]]


def _find(path: Path) -> _Found:
    """The path and the text files it stands for, in sorted order."""
    if not path.exists():
        raise UnmaskError(f"{path} does not exist.{_near(path) or ' Check the path.'}")
    if not path.is_dir():
        return path, [path]
    files = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(folder, name) for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
    if not files:
        raise UnmaskError(f"The folder {path} has no text files ({', '.join(SUFFIXES)}); name the files instead.")
    return path, sorted(files, key=lambda file: file.relative_to(path).parts)


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f" There is no folder {path.parent} either."
    names = [entry.name for entry in path.parent.iterdir()]
    return did_you_mean(path.name, difflib.get_close_matches(path.name, names, n=1))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked by its suffix; what goes wrong below is reported with the file's name."""
    openers: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open}
    try:
        with openers.get(path.suffix, partial(open, mode="rb"))(path) as stream:
            yield stream
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise UnmaskError(f"{path} is not a complete {path.suffix} file ({error}); fetch or pack it again.") from error
    except OSError as error:
        raise UnmaskError(f"{path} cannot be read ({error.strerror}); check the file and its permissions.") from error


def _pieces(stream: BinaryIO, separator: str | None) -> Iterator[tuple[int, bytes]]:
    """The documents of a stream as (byte offset, bytes)."""
    if separator is None:
        yield 0, stream.read()
    elif separator == "line":
        yield from _between(stream, lambda line: True, keep=True)
    elif separator == "paragraph":
        yield from _between(stream, lambda line: not line.strip())
    else:
        mark = separator.encode()
        yield from _between(stream, lambda line: _without_line_end(line) == mark)


def _between(
    lines: Iterable[bytes], separates: Callable[[bytes], bool], keep: bool = False
) -> Iterator[tuple[int, bytes]]:
    """What lies between the lines that separate; ``keep``: such a line is itself the end of what it closes."""
    start = offset = 0
    held: list[bytes] = []
    for line in lines:
        offset += len(line)
        closing = separates(line)
        if keep or not closing:
            held.append(line)
        if closing:
            yield start, _without_line_end(b"".join(held))
            held, start = [], offset
    yield start, _without_line_end(b"".join(held))


def _without_line_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
