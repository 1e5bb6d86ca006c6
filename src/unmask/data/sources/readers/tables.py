"""Parquet, Arrow and Feather: one column, a few rows at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from unmask.data.sources.base import Document
from unmask.data.sources.opening import File
from unmask.data.sources.pieces import numbered
from unmask.data.sources.readers.fields import text_field
from unmask.data.sources.readers.options import Reading
from unmask.errors import UnmaskError

ROWS = 256
BUFFER = 1 << 20
ARROW_FILE = b"ARROW1"  # what the random-access format begins with; the streaming one does not


def read_parquet(file: File, how: Reading) -> Iterator[Document]:
    """A document for each row; the rows of one group are decoded as they are needed."""
    with _pyarrow(file) as pa:
        from pyarrow import parquet

        with parquet.ParquetFile(file.path, buffer_size=BUFFER) as table:
            column = _column(pa, table.schema_arrow, file, how)
            batches = table.iter_batches(ROWS, columns=[column], use_threads=False)
            yield from numbered(file.name, _texts(pa, batches, column, file, how))


def read_arrow(file: File, how: Reading) -> Iterator[Document]:
    """A document for each row of an Arrow file, of either format, or of a Feather file."""
    with _pyarrow(file) as pa, pa.memory_map(str(file.path)) as table:
        batches = _batches(pa, table)
        column = _column(pa, batches.schema, file, how)
        yield from numbered(file.name, _texts(pa, batches, column, file, how))


@contextlib.contextmanager
def _pyarrow(file: File) -> Iterator[Any]:
    """The package, and sentences for what it finds wrong with a file."""
    if file.packing:
        raise UnmaskError(f"{file.where} can only be read unpacked; unpack it first (its columns are packed anyway).")
    try:
        import pyarrow
    except ImportError as error:
        raise UnmaskError(f"{file.where} needs the package pyarrow; run: pip install 'unmask[data]'.") from error
    try:
        yield pyarrow
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UnmaskError(f"{file.where} is not a complete {file.kind} file ({reason}); fetch it again.") from error


def _batches(pa: Any, table: Any) -> Any:
    """Record batches, with their schema."""
    is_file = table.read(len(ARROW_FILE)) == ARROW_FILE
    table.seek(0)
    if not is_file:
        return pa.ipc.open_stream(table)
    reader = pa.ipc.open_file(table)
    batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def _column(pa: Any, schema: Any, file: File, how: Reading) -> str:
    strings = {field.name: _holds_strings(pa, field.type) for field in schema}
    column = text_field(file.where, strings, how.field)
    if not strings[column]:
        raise UnmaskError(
            f"The column '{column}' of {file.where} holds {schema.field(column).type}, not strings; "
            "set the option field to one that does."
        )
    return column


def _holds_strings(pa: Any, kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_strings(pa, kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _texts(pa: Any, batches: Iterable[Any], column: str, file: File, how: Reading) -> Iterator[str]:
    """The texts of a column; null is no text."""
    row = 0
    for batch in batches:
        for start in range(0, len(batch), ROWS):
            values = batch.column(column).slice(start, ROWS).cast(pa.large_binary()).to_pylist()
            for row, value in enumerate(values, start=row + 1):  # noqa: B020
                if value is not None:
                    yield _decoded(value, row, file, how)


def _decoded(value: bytes, row: int, file: File, how: Reading) -> str:
    try:
        return value.decode("utf-8", how.encoding_errors)
    except UnicodeDecodeError as error:
        raise UnmaskError(
            f"{file.where}, row {row}, is not valid UTF-8 at byte {error.start} ({error.reason}); "
            "convert it to UTF-8 or set encoding_errors=replace."
        ) from error
