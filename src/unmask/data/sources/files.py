"""Sources that read files: paths to files and folders, and which of the files in a folder are meant."""

from __future__ import annotations

import bz2
import contextlib
import difflib
import gzip
import io
import lzma
import os
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TextIO

from pydantic import field_validator

from unmask.data.sources.base import Document, Source
from unmask.errors import UnmaskError, did_you_mean

CHUNK = 1 << 15
LARGEST_WINDOW = 1 << 31  # what `zstd --long=31` writes


def open_zst(path: Path) -> io.RawIOBase:
    """The unpacked bytes of a file."""
    try:
        import zstandard
    except ImportError as error:
        raise UnmaskError(f"{path} needs the package zstandard; run: pip install 'unmask[data]'.") from error
    return _ZstFile(path, zstandard)


class _ZstFile(io.RawIOBase):
    """Frame after frame. Unlike zstandard's own reader it notices a file that ends within a frame."""

    def __init__(self, path: Path, zstandard: Any) -> None:
        self._file = io.FileIO(path)
        self._error = zstandard.ZstdError
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        self._frame = self._unpacker.decompressobj()
        self._ready = memoryview(b"")
        self._offset = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready and (packed := self._packed()):
            try:
                self._ready = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise OSError(str(error)) from error
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        self._offset += count
        return count

    def _packed(self) -> bytes:
        """The next bytes of the file; none at its end."""
        if not self._frame.eof:
            if packed := self._file.read(CHUNK):
                return packed
            raise EOFError("it ends too soon")
        packed = self._frame.unused_data or self._file.read(CHUNK)
        if packed:
            self._frame = self._unpacker.decompressobj()
        return packed


BUFFER = 1 << 18
PACKINGS: dict[str, Callable[[Path], Any]] = {
    "": partial(open, mode="rb", buffering=0),
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": open_zst,
}


@dataclass(frozen=True)
class File:
    """A file to read. name: that of its documents. where: what to call the file in a message."""

    path: Path
    name: str
    where: str

    @property
    def kind(self) -> str:
        """The suffix that names the format, below that of a packing."""
        return suffixes(self.path)[0]

    @property
    def packing(self) -> str:
        """``.gz``, ``.bz2``, ``.xz``, ``.zst`` or nothing."""
        return suffixes(self.path)[1]

    @contextlib.contextmanager
    def bytes(self) -> Iterator[BinaryIO]:
        """Its unpacked bytes."""
        try:
            with io.BufferedReader(PACKINGS[self.packing](self.path), BUFFER) as stream:
                yield stream
        except (EOFError, lzma.LZMAError, zlib.error) as error:
            raise self._broken(error) from error
        except OSError as error:
            if error.errno is None:
                raise self._broken(error) from error
            raise UnmaskError(
                f"{self.where} cannot be read ({error.strerror}); check the file and its permissions."
            ) from error

    @contextlib.contextmanager
    def text(self, errors: str, newline: str = "\n") -> Iterator[TextIO]:
        """Its text, which is UTF-8 and kept as it is but for a byte-order mark at the start.

        errors: ``'strict'`` or ``'replace'``. newline: ``"\\n"``, lines end there; ``""``, also at a lone ``"\\r"``.
        """
        with self.bytes() as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors=errors, newline=newline)
            try:
                yield text
            except UnicodeDecodeError as error:
                offset = stream.tell() - len(error.object) + error.start
                raise UnmaskError(
                    f"{self.where} is not valid UTF-8 at byte {offset} ({error.reason}); "
                    "convert it to UTF-8 or set encoding_errors=replace."
                ) from error
            finally:
                text.detach()

    def _broken(self, error: Exception) -> UnmaskError:
        return UnmaskError(f"{self.where} is not a complete {self.packing} file ({error}); fetch or pack it again.")


def suffixes(path: Path) -> tuple[str, str]:
    """The format's suffix and that of the packing, in small letters: ``('.txt', '.gz')``, ``('.md', '')``."""
    last = path.suffix.lower()
    return (path.with_suffix("").suffix.lower(), last) if last in PACKINGS else (last, "")


class FileSource(Source):
    """Files, and folders of them.

    paths: a file or folder, or a list of them. A folder is walked to its depth, in sorted order, for files of the
    source's kinds, which may be packed (``.gz``, ``.bz2``, ``.xz``, ``.zst``); names that begin with a dot are passed
    over. A file that is named is read whatever its suffix. Documents are named by the path inside the folder (or the
    file's name), so a corpus that moves keeps its names.
    validation_files: the names of the files that are held out, such as ``'valid*'``; without it documents of all files
    are.
    """

    paths: str | list[str]
    validation_files: str | None = None
    kinds: ClassVar[Collection[str]]
    """Suffixes of the files that are read in a folder."""

    @field_validator("paths", mode="before")
    @classmethod
    def _as_text(cls, paths: Any) -> Any:
        if isinstance(paths, (list, tuple)):
            return [os.fspath(path) if isinstance(path, os.PathLike) else path for path in paths]
        return os.fspath(paths) if isinstance(paths, os.PathLike) else paths

    def documents(self) -> Iterator[Document]:
        """All documents; a path that does not exist or a folder without a file to read is reported before the first."""
        paths = self._paths()
        if not paths:
            raise UnmaskError("The source has no paths; name at least one file or folder.")
        return self._read([(path, self._files(path)) for path in paths])

    def held_out(self, name: str) -> bool | None:
        """By the name of its file, where files are held out."""
        files = self.validation_files
        return None if files is None else fnmatchcase(name, files) or fnmatchcase(name, f"{files}#*")

    def skipped_files(self) -> dict[str, int]:
        """How many files of each suffix the folders have that are not read, the most frequent first."""
        files = (file for path in self._paths() if path.is_dir() for file in _walk(path))
        unread = (suffixes(file) for file in files if suffixes(file)[0] not in self.kinds)
        return dict(Counter(kind + packing for kind, packing in unread).most_common())

    @abstractmethod
    def _documents_of(self, file: File) -> Iterator[Document]:
        """The documents of one file."""

    def _paths(self) -> list[Path]:
        return [Path(path).expanduser() for path in ([self.paths] if isinstance(self.paths, str) else self.paths)]

    def _files(self, path: Path) -> list[File]:
        """The files that a path stands for, in sorted order."""
        if not path.exists():
            raise UnmaskError(f"{path} does not exist.{_near(path) or ' Check the path.'}")
        if not path.is_dir():
            return [File(path, path.name, str(path))]
        files = [file for file in _walk(path) if suffixes(file)[0] in self.kinds]
        if not files:
            raise UnmaskError(
                f"The folder {path} has no files to read ({', '.join(self.kinds)}); name the files instead."
            )
        return [File(file, file.relative_to(path).as_posix(), str(file)) for file in files]

    def _read(self, found: list[tuple[Path, list[File]]]) -> Iterator[Document]:
        for path, files in found:
            documents = chain.from_iterable(map(self._documents_of, files))
            first = next(documents, None)
            if first is None:
                raise UnmaskError(f"{path} has no text in it; name a file or folder with text.")
            yield first
            yield from documents


def _walk(path: Path) -> list[Path]:
    """All files below a folder, in sorted order."""
    files = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted(files, key=lambda file: file.relative_to(path).parts)


def _near(path: Path) -> str:
    if not path.parent.is_dir():
        return f" There is no folder {path.parent} either."
    names = [entry.name for entry in path.parent.iterdir()]
    return did_you_mean(path.name, difflib.get_close_matches(path.name, names, n=1))
