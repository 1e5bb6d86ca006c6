"""Sources that read files: paths to files and folders, and which of the files in a folder are meant."""

from __future__ import annotations

import difflib
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from pydantic import field_validator

from unmask.data.sources.base import Document, Source
from unmask.data.sources.opening import File, suffixes
from unmask.errors import UnmaskError, did_you_mean


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

    def left_out(self) -> dict[str, int]:
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
