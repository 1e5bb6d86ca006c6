"""Texts in files of many formats, and folders that mix them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar, Literal

from pydantic import field_validator

from unmask.data.sources.base import Document, Source
from unmask.data.sources.folders import FileSource
from unmask.data.sources.opening import File
from unmask.data.sources.readers import READERS
from unmask.data.sources.readers.options import Reading
from unmask.data.sources.readers.plain import read_plain


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
