"""JSON Lines: one object (or text) a line, of which one line at a time is held."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from unmask.data.sources.base import Document
from unmask.data.sources.opening import File
from unmask.data.sources.pieces import numbered
from unmask.data.sources.readers.fields import texts_of
from unmask.data.sources.readers.options import Reading
from unmask.errors import UnmaskError


def read_json_lines(file: File, how: Reading) -> Iterator[Document]:
    """A document for each line; blank lines are passed over."""
    with file.text(how.encoding_errors) as lines:
        yield from numbered(file.name, texts_of(file.where, "line", _records(lines, file.where), how.field))


def _records(lines: Iterable[str], where: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if not line.strip():
                continue
            raise UnmaskError(f"{where}, line {number}, is not JSON ({error}); mend it or remove it.") from error
        yield number, record
