"""Plain text: a file is one document, or lines of it separate documents.

The line end just before a separator (or before the end of a file that is cut by one) belongs to the separator, not to
the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import TextIO

from unmask.data.sources.base import Document
from unmask.data.sources.opening import File
from unmask.data.sources.pieces import Text, in_pieces, numbered
from unmask.data.sources.readers.options import Reading

CHUNK = 1 << 20
LINE = 1 << 20
"""A line of this many characters or more is read in parts, and never separates."""


def read_plain(file: File, how: Reading) -> Iterator[Document]:
    """The documents of a text file."""
    with file.text(how.encoding_errors) as text:
        if how.separator is None:
            yield from in_pieces(file.name, iter(partial(text.read, CHUNK), ""))
        else:
            yield from numbered(file.name, _separated(text, how.separator))


def _separated(text: TextIO, separator: str) -> Iterator[Text]:
    if separator == "line":
        return _each_line(text)
    if separator == "paragraph":
        return _between(_lines(text), str.isspace)
    return _between(_lines(text), lambda line: _without_line_end(line) == separator)


def _lines(text: TextIO) -> Iterator[str]:
    """Lines with their ends, and the parts of long ones; a part never ends between the two characters of a line end."""
    while line := text.readline(LINE):
        while line[-1] == "\r" and (following := text.readline(1)):
            line += following
        yield line


def _each_line(text: TextIO) -> Iterator[Text]:
    """Each line is a text. They are read many at a time, as files with millions of lines should not take long."""
    lines = _lines(text)
    while block := text.read(CHUNK) + next(lines, ""):
        *whole, last = block.replace("\r\n", "\n").split("\n")
        yield from whole
        if last:
            yield _until_line_end(chain([last], lines))


def _until_line_end(parts: Iterator[str]) -> Iterator[str]:
    for part in parts:
        yield _without_line_end(part)
        if part.endswith("\n"):
            return


def _between(lines: Iterator[str], separates: Callable[[str], bool]) -> Iterator[Text]:
    """A text is what lies between lines that separate."""

    def closes(line: str) -> bool:
        return len(line) < LINE and separates(line)

    for line in lines:
        if not closes(line):
            yield _until(closes, line, lines)


def _until(closes: Callable[[str], bool], first: str, lines: Iterator[str]) -> Iterator[str]:
    held = first
    for line in lines:
        if held.endswith("\n") and closes(line):
            break
        yield held
        held = line
    yield _without_line_end(held)


def _without_line_end(line: str) -> str:
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line
