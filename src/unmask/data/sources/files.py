"""Sources that read files: which files to read, and decompression."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import difflib
import glob
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

from unmask.data.documents import Document, not_empty
from unmask.data.sources import Source, is_pattern
from unmask.errors import UnmaskError, did_you_mean

BUFFER_BYTES = 1 << 18
ZSTD_BYTES = 1 << 12
"""Compressed bytes per call of zstd, which decompresses all of them at once, to up to 32,768 times as many."""
SNIFFED_BYTES = 1 << 12


class ZstdFile(io.RawIOBase):
    """A file of one or more zstd frames. Unlike the reader of zstandard, it detects a truncated file."""

    def __init__(self, path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise UnmaskError(f"{path} needs the package zstandard; run: pip install 'unmask[data]'.") from error
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed in close)
        self._error = zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # for `zstd --long=31`
        self._frame = self._decompressor.decompressobj()
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
        while not self._ready:
            compressed = (self._frame.eof and self._frame.unused_data) or self._file.read(ZSTD_BYTES)
            if not compressed:
                if not self._frame.eof:
                    raise EOFError("unexpected end of file")
                return 0
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            try:
                self._ready = memoryview(self._frame.decompress(compressed))
            except self._error as error:
                raise OSError(str(error)) from error
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        self._offset += count
        return count


COMPRESSIONS: dict[str, Callable[[Path], Any]] = {
    "": partial(open, mode="rb", buffering=0),
    ".gz": gzip.open,
    ".bgz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": ZstdFile,
}


def find_file(path: Path) -> Path | None:
    """The file itself, or a compressed one with the same name."""
    candidates = (path.with_name(path.name + suffix) for suffix in COMPRESSIONS)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


@dataclass(frozen=True)
class InputFile:
    """A file to read. name: the name of its documents. label: what error messages call it."""

    path: Path
    name: str
    label: str

    @property
    def format(self) -> str:
        """The lower-case suffix before that of a compression: ``.txt`` for ``a.TXT.gz``."""
        return self._suffixes[0]

    @property
    def compression(self) -> str:
        """``.gz``, ``.bgz``, ``.bz2``, ``.xz``, ``.zst`` or nothing."""
        return self._suffixes[1]

    @property
    def _suffixes(self) -> tuple[str, str]:
        last = self.path.suffix.lower()
        return (self.path.with_suffix("").suffix.lower(), last) if last in COMPRESSIONS else (last, "")

    @contextlib.contextmanager
    def open_bytes(self) -> Iterator[BinaryIO]:
        """Open the file for reading, decompressed."""
        try:
            with io.BufferedReader(COMPRESSIONS[self.compression](self.path), BUFFER_BYTES) as stream:
                yield stream
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise UnmaskError(
                    f"{self.label} cannot be read ({error.strerror}); check the file and its permissions."
                ) from error
            raise UnmaskError(
                f"{self.label} is not a complete {self.compression} file ({error}); download or compress it again."
            ) from error

    def is_text(self) -> bool:
        """Return whether the file begins with UTF-8 text."""
        try:
            with self.open_bytes() as stream:
                start = stream.read(SNIFFED_BYTES)
            codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) < SNIFFED_BYTES)
        except (UnmaskError, UnicodeDecodeError):
            return False
        return b"\0" not in start

    @contextlib.contextmanager
    def open_text(self, errors: str | None = None, newline: str = "\n") -> Iterator[TextIO]:
        """Open the file as UTF-8; text is unchanged except for a byte-order mark at the start, which is dropped.

        errors: ``'strict'`` or ``'replace'``, the user's choice; None: strict, without a choice. newline: ``"\\n"``,
        lines end there; ``""``, also at a lone ``"\\r"``.
        """
        with self.open_bytes() as stream:
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors=errors or "strict", newline=newline)
            try:
                yield text
            except UnicodeDecodeError as error:
                offset = stream.tell() - len(error.object) + error.start
                choice = ", or set data.source.encoding_errors=replace" if errors else ""
                raise UnmaskError(
                    f"{self.label} is not valid UTF-8 at byte {offset} ({error.reason}); convert it to UTF-8{choice}."
                ) from error
            finally:
                text.detach()


class FileSource(Source):
    """Base class of the sources that read files and folders.

    paths: a file, a folder or a pattern such as ``'texts/**/*.md'``, or a list of them. Folders are searched
    recursively, in sorted order, for files of the source's formats, which may be compressed (``.gz``, ``.bgz``,
    ``.bz2``, ``.xz``, ``.zst``); hidden files are skipped. A file named explicitly is read whatever its suffix.
    Documents are named by the path inside the folder, or by the file's name, so a corpus can be moved without changing
    its names.
    validation_files: a pattern, such as ``'valid*'``, for the files that are held out; by default the split chooses
    documents.
    """

    paths: str | list[str]
    validation_files: str | None = None
    formats: ClassVar[Collection[str]]
    """Suffixes of the files that are read in a folder."""

    @field_validator("paths", mode="before")
    @classmethod
    def _paths_as_text(cls, paths: Any) -> Any:
        if isinstance(paths, (list, tuple)):
            return [os.fspath(path) if isinstance(path, os.PathLike) else path for path in paths]
        return os.fspath(paths) if isinstance(paths, os.PathLike) else paths

    @abstractmethod
    def read_file(self, file: InputFile) -> Iterator[Document]:
        """Yield the documents of one file."""

    def documents(self) -> Iterator[Document]:
        """Yield all documents; missing paths and folders without files are reported before the first."""
        paths = self._paths()
        if not paths:
            raise UnmaskError("The source has no paths; give at least one file or folder.")
        return self._read([(path, self._files(path)) for path in paths])

    def check(self) -> None:
        next(self.documents())

    def held_out(self, name: str) -> bool | None:
        """Return whether the file of a document matches ``validation_files``."""
        pattern = self.validation_files
        return None if pattern is None else fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}#*")

    def skipped_files(self) -> dict[str, int]:
        """Return the number of files of each suffix in the folders that are not read, the most frequent first."""
        found = chain.from_iterable(self._search(path) for path in self._paths() if not path.is_file())
        return dict(Counter(file.format + file.compression for file, reads in found if not reads).most_common())

    def reads(self, file: InputFile, matches_pattern: bool) -> bool:
        """Return whether a file that is not named itself is read: one in a folder, or one that matches a pattern."""
        return file.format in self.formats

    def _paths(self) -> list[Path]:
        return [Path(path).expanduser() for path in ([self.paths] if isinstance(self.paths, str) else self.paths)]

    def _files(self, path: Path) -> list[InputFile]:
        if path.is_file():
            return [InputFile(path, path.name, str(path))]
        if path.exists() and not path.is_dir():
            raise UnmaskError(
                f"{path} is a pipe or a device, which cannot be read twice; name a file, or pipe into '-'."
            )
        files = [file for file, reads in self._search(path) if reads]
        if files:
            return files
        if path.is_dir():
            raise UnmaskError(
                f"The folder {path} has no files to read ({', '.join(self.formats)}); name the files instead."
            )
        if is_pattern(path):
            raise UnmaskError(f"No file with text matches {path}; check the pattern.")
        hint = f" The folder {path.parent} does not exist either."
        if path.parent.is_dir():
            names = [entry.name for entry in path.parent.iterdir()]
            hint = did_you_mean(path.name, difflib.get_close_matches(path.name, names, n=1)) or " Check the path."
        raise UnmaskError(f"{path} does not exist.{hint}")

    def _search(self, path: Path) -> list[tuple[InputFile, bool]]:
        """Find the files in a folder or of a pattern, sorted, each with whether it is read."""
        root, files = path, []
        exists = path.exists()
        if not exists:
            root = next(folder for folder in path.parents if not is_pattern(folder))
            files = [Path(file) for file in glob.iglob(str(path), recursive=True)]
        else:
            for folder, folders, names in os.walk(path):
                folders[:] = [name for name in folders if not name.startswith(".")]
                files += [Path(folder, name) for name in names if not name.startswith(".")]
        inner = sorted(file.relative_to(root) for file in files if file.is_file() or not file.exists())
        found = (InputFile(root / file, file.as_posix(), str(root / file)) for file in inner)
        return [(file, self.reads(file, not exists)) for file in found]

    def _read(self, found: list[tuple[Path, list[InputFile]]]) -> Iterator[Document]:
        for path, files in found:
            documents = chain.from_iterable(map(self.read_file, files))
            yield from not_empty(documents, f"{path} has no text in it; name a file or folder with text.")
