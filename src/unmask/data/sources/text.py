"""DNA in FASTA files."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import IO, ClassVar, Literal

from pydantic import field_validator

from unmask.data.sources.base import Document, Source
from unmask.data.sources.files import File, FileSource
from unmask.data.sources.readers import FASTA, OPPOSITE, READERS, Reading, read_fasta, read_plain
from unmask.errors import UnmaskError


class SeparatedText(Source):
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


class TextSource(FileSource, SeparatedText):
    """Files and folders of plain text, JSON Lines, JSON, CSV, TSV, Parquet, Arrow and FASTA.

    Each file is read by its suffix; one with another suffix, when it is named, as plain text. Text is kept as it is,
    line ends included; only a byte-order mark is dropped. A file with several documents has ``#number`` after its name.
    field: where the records of JSON, CSV, Parquet and Arrow keep their text; without it ``text`` where there is such a
    field, else the only one that holds strings. A null there is no document.
    """

    name: Literal["text"] = "text"
    field: str | None = None
    kinds: ClassVar[Collection[str]] = READERS

    def _documents_of(self, file: File) -> Iterator[Document]:
        how = Reading(separator=self.separator, field=self.field, encoding_errors=self.encoding_errors)
        return READERS.get(file.kind, read_plain)(file, how)


class StdinSource(SeparatedText):
    """Standard input, kept in a temporary file until the program ends, so that it can be walked again."""

    name: Literal["stdin"] = "stdin"
    persistent: ClassVar[bool] = False

    def documents(self) -> Iterator[Document]:
        """The documents of standard input; an empty one is an error."""
        file = File(Path(_kept(sys.stdin).name, "text"), "stdin", "Standard input")
        documents = read_plain(file, Reading(separator=self.separator, encoding_errors=self.encoding_errors))
        first = next(documents, None)
        if first is None:
            raise UnmaskError("Standard input is empty; pipe a text into it or name a file.")
        yield first
        yield from documents


@cache
def _kept(stream: IO[str]) -> tempfile.TemporaryDirectory[str]:
    """A folder that holds what came in as the file 'text'; it is removed when the program ends."""
    folder = tempfile.TemporaryDirectory(prefix="unmask-")
    try:
        with open(Path(folder.name, "text"), "wb") as copy:
            shutil.copyfileobj(stream.buffer, copy)  # type: ignore[attr-defined]
    except OSError as error:
        folder.cleanup()
        raise UnmaskError(
            f"Standard input could not be kept in {tempfile.gettempdir()} ({error.strerror}); "
            "free space there or set the environment variable TMPDIR."
        ) from error
    return folder


class FastaSource(FileSource):
    """DNA in FASTA files and folders of them: each record is a document of A, C, G, T and N.

    reverse_complement: each record is followed by its opposite strand, named as it is with ``/rc`` behind, and both go
    to the same part of a split.
    """

    name: Literal["fasta"] = "fasta"
    reverse_complement: bool = False
    kinds: ClassVar[Collection[str]] = FASTA

    def split_key(self, name: str) -> str:
        """The name of the record, for both of its strands."""
        return name.removesuffix(OPPOSITE) if self.reverse_complement else name

    def _documents_of(self, file: File) -> Iterator[Document]:
        return read_fasta(file, Reading(reverse_complement=self.reverse_complement))
