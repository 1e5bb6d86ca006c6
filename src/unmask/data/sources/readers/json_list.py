"""JSON: a list of objects or texts, of which one entry at a time is held."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from unmask.data.sources.base import Document
from unmask.data.sources.opening import File
from unmask.data.sources.pieces import numbered
from unmask.data.sources.readers.fields import texts_of
from unmask.data.sources.readers.options import Reading
from unmask.errors import UnmaskError

CHUNK = 1 << 16
LONGEST_TOKEN = 16  # a value that breaks off this near the end of what was read may go on behind it

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def read_json_list(file: File, how: Reading) -> Iterator[Document]:
    """A document for each entry of the list."""
    with file.text(how.encoding_errors) as text:
        entries = enumerate(_Entries(text, file.where), start=1)
        yield from numbered(file.name, texts_of(file.where, "entry", entries, how.field))


class _Entries:
    """The entries of one list, read as they are asked for."""

    def __init__(self, text: TextIO, where: str) -> None:
        self._text = text
        self._where = where
        self._held = ""
        self._at = 0
        self._lines = 1  # the number of the line on which what is held begins

    def __iter__(self) -> Iterator[Any]:
        if self._next() != "[":
            raise self._wrong("is no JSON list; rename it to .jsonl if it has an object a line, or take it away")
        self._at += 1
        more = self._next() != "]"
        while more:
            yield self._value()
            mark = self._next()
            if mark not in (",", "]"):
                raise self._wrong("has neither a comma nor the end of the list there; mend it")
            more = mark == ","
            self._at += more
        self._at += 1
        if self._next():
            raise self._wrong(
                "goes on after the end of the list; rename it to .jsonl if it has a list or object a line"
            )

    def _next(self) -> str:
        """The next character that is not white space, where reading then stands; nothing at the end."""
        while True:
            self._at = _SPACE.match(self._held, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._held) or not self._more():
                return self._held[self._at : self._at + 1]

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, self._at = _DECODER.raw_decode(self._held, self._at)
            except json.JSONDecodeError as error:
                broken_off = error.msg.startswith("Unterminated") or error.pos >= len(self._held) - LONGEST_TOKEN
                if not (broken_off and self._more()):
                    raise self._wrong(f"is not JSON ({error.msg}); mend it", error.pos) from error
            else:
                return value

    def _more(self) -> bool:
        """Drop what was read and hold as much again as is left, so that a long entry is not tried too often."""
        self._lines += self._held.count("\n", 0, self._at)
        self._held = self._held[self._at :]
        self._at = 0
        new = self._text.read(max(CHUNK, len(self._held)))
        self._held += new
        return bool(new)

    def _wrong(self, complaint: str, at: int | None = None) -> UnmaskError:
        line = self._lines + self._held.count("\n", 0, self._at if at is None else at)
        return UnmaskError(f"{self._where}, line {line}, {complaint}.")
