"""CSV and TSV: the first row names the columns, one of which holds the text."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from typing import TextIO

from unmask.data.sources.base import Document
from unmask.data.sources.opening import File
from unmask.data.sources.pieces import numbered
from unmask.data.sources.readers.fields import text_field
from unmask.data.sources.readers.options import Reading
from unmask.errors import UnmaskError

LONGEST_CELL = 1 << 26
"""Characters; only a quote that is never closed makes a longer one."""


def _read(delimiter: str, file: File, how: Reading) -> Iterator[Document]:
    with file.text(how.encoding_errors, newline="") as text:
        yield from numbered(file.name, _cells(text, delimiter, file.where, how.field))


read_csv = partial(_read, ",")
read_tsv = partial(_read, "\t")


def _cells(text: TextIO, delimiter: str, where: str, wanted: str | None) -> Iterator[str]:
    rows = _rows(text, delimiter, where)
    header = next(rows, [])
    column = None
    for row in rows:
        if column is None:
            column = _column(where, header, row, wanted)
        yield row[column]


def _rows(text: TextIO, delimiter: str, where: str) -> Iterator[list[str]]:
    """Rows of equal length; blank lines are passed over."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    columns = 0
    try:
        for row in filter(None, reader):
            columns = columns or len(row)
            if len(row) != columns:
                raise csv.Error(f"it has {len(row)} columns, and the first row has {columns}")
            yield row
    except csv.Error as error:
        raise UnmaskError(
            f"{where}, line {reader.line_num}, is not a row of the table ({error}); "
            "put quotes around texts and double the quotes inside them."
        ) from error


def _column(where: str, header: list[str], first: list[str], wanted: str | None) -> int:
    """The place of the column with the text; what the first row has no number in holds strings."""
    fields = {name: not _is_number(cell) for name, cell in zip(header, first, strict=True)}
    return header.index(text_field(where, fields, wanted))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
