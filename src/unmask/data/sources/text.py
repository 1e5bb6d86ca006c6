"""The sources `text` and `stdin`, with one reader per file format.

Plain text, JSON Lines, CSV and FASTA are read piece by piece; a JSON list must fit into memory.
"""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import chain, groupby
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from pydantic import field_validator

from unmask.data.documents import Document, in_parts, not_empty, numbered
from unmask.data.sources import Source, fasta
from unmask.data.sources.files import FileSource, InputFile
from unmask.errors import UnmaskError, did_you_mean

CHUNK_CHARACTERS = 1 << 20
MAX_CELL_CHARACTERS = 1 << 26
"""A longer CSV cell is taken for a missing closing quote."""
ROWS_AT_ONCE = 256


class PlainTextOptions(Source):
    """Options of the sources that read plain text.

    separator: None, one file is one document; ``'line'``, each line is one; ``'paragraph'``, blank lines separate
    documents; any other text, lines equal to it do. Empty documents are dropped; those of white space are kept.
    encoding_errors: ``'strict'`` raises an error for bytes that are not UTF-8, ``'replace'`` reads them as U+FFFD.
    """

    separator: str | None = None
    encoding_errors: Literal["strict", "replace"] = "strict"

    @field_validator("separator")
    @classmethod
    def _is_one_line(cls, separator: str | None) -> str | None:
        if separator is not None and (not separator or "\n" in separator or "\r" in separator):
            raise ValueError("a separator must be one line of text, 'line' or 'paragraph'")
        return separator


def read_plain(file: InputFile, options: PlainTextOptions) -> Iterator[Document]:
    """Yield the documents of a text file. A line is held in memory where lines separate documents."""
    separator = options.separator
    with file.open_text(options.encoding_errors) as text:
        if separator is None:
            yield from in_parts(file.name, iter(partial(text.read, CHUNK_CHARACTERS), ""))
        elif separator == "line":
            yield from numbered(file.name, map(_without_line_end, text))
        else:
            paragraphs = separator == "paragraph"
            is_separator = str.isspace if paragraphs else lambda line: _without_line_end(line) == separator
            groups = (lines for separates, lines in groupby(text, is_separator) if not separates)
            yield from numbered(file.name, map(_without_last_line_end, groups))


def _without_line_end(line: str) -> str:
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def _without_last_line_end(lines: Iterator[str]) -> Iterator[str]:
    previous = next(lines)
    for line in lines:
        yield previous
        previous = line
    yield _without_line_end(previous)


def find_text_field(where: str, fields: Mapping[str, bool], wanted: str | None) -> str:
    """Return the wanted field, else ``text``, else the only one with strings. fields: whether each holds strings."""
    if wanted is not None:
        if wanted not in fields:
            raise UnmaskError(f"{where} has no field '{wanted}'.{did_you_mean(wanted, fields)}")
        return wanted
    strings = ["text"] if "text" in fields else [name for name, holds_strings in fields.items() if holds_strings]
    if len(strings) != 1:
        example = next(iter(strings or fields), "text")
        raise UnmaskError(
            f"{where} has {'several fields' if strings else 'no field'} with text among "
            f"{', '.join(map(repr, fields)) or 'none at all'}; name one, as in data.source.field={example} (or --field "
            f"{example})."
        )
    return strings[0]


def string_fields(record: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether each field of a record may hold strings; null may stand for one."""
    return {name: value is None or isinstance(value, str) for name, value in record.items()}


def texts_of_records(where: str, unit: str, records: Iterable[tuple[int, Any]], wanted: str | None) -> Iterator[str]:
    """Yield the texts of numbered records, each a string or an object; null is skipped.

    The first object decides which field is read. unit: what the numbers count, for error messages.
    """
    field = None
    for number, record in records:
        value = record
        if isinstance(record, dict):
            if field is None:
                field = find_text_field(f"{where}, {unit} {number},", string_fields(record), wanted)
            if field not in record:
                raise UnmaskError(
                    f"{where}, {unit} {number}, has no field '{field}'; "
                    "add it there, or set data.source.field (--field) to one that every record has."
                )
            value = record[field]
        if isinstance(value, str):
            yield value
        elif value is not None:
            shown = repr(value)
            shown = shown if len(shown) < 40 else f"{shown[:40]}..."
            raise UnmaskError(f"{where}, {unit} {number}, has {shown} instead of a text; correct or remove it.")


def read_json_lines(file: InputFile, options: TextSource) -> Iterator[Document]:
    """Yield a document per line; blank lines are skipped."""
    with file.open_text(options.encoding_errors) as lines:
        records = ((number, _parse_json(line, file, number)) for number, line in enumerate(lines, 1) if line.strip())
        yield from numbered(file.name, texts_of_records(file.label, "line", records, options.field))


def read_json_list(file: InputFile, options: TextSource) -> Iterator[Document]:
    """Yield a document per entry of a JSON list, which must fit into memory."""
    with file.open_text(options.encoding_errors) as text:
        entries = _parse_json(text.read(), file)
    if not isinstance(entries, list):
        raise UnmaskError(f"{file.label} must be a JSON list; rename it to .jsonl if it has one object per line.")
    yield from numbered(file.name, texts_of_records(file.label, "entry", enumerate(entries, 1), options.field))


def _parse_json(text: str, file: InputFile, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = line or getattr(error, "lineno", 1)
        reason = getattr(error, "msg", error)
        raise UnmaskError(f"{file.label}, line {line}, is not JSON ({reason}); correct or remove it.") from error


def read_csv(delimiter: str, file: InputFile, options: TextSource) -> Iterator[Document]:
    """Yield a document per row of a table with a header; blank lines are skipped."""
    with file.open_text(options.encoding_errors, newline="") as text:
        yield from numbered(file.name, _cells(csv.reader(text, delimiter=delimiter, strict=True), file, options.field))


def _cells(reader: Any, file: InputFile, wanted: str | None) -> Iterator[str]:
    """Yield the cells of the column with the text. A column holds strings if its first cell is not a number."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARACTERS))
    header: list[str] = []
    column = None
    try:
        for row in filter(None, reader):
            if not header:
                header = row
                continue
            if len(row) != len(header):
                raise csv.Error(f"it has {len(row)} columns, and the first row has {len(header)}")
            if column is None:
                fields = {name: not _is_number(cell) for name, cell in zip(header, row, strict=True)}
                column = header.index(find_text_field(file.label, fields, wanted))
            yield row[column]
    except csv.Error as error:
        raise UnmaskError(
            f"{file.label}, line {reader.line_num}, is not a row of the table ({error}); "
            "put quotes around texts and double the quotes inside them."
        ) from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def read_parquet(file: InputFile, options: TextSource) -> Iterator[Document]:
    """Yield a document per row."""
    with _pyarrow(file) as pa:
        from pyarrow import parquet

        with parquet.ParquetFile(file.path, buffer_size=CHUNK_CHARACTERS) as table:
            column = _string_column(pa, table.schema_arrow, file, options.field)
            batches = table.iter_batches(ROWS_AT_ONCE, columns=[column], use_threads=False)
            yield from numbered(file.name, _column_texts(batches, column))


def read_arrow(file: InputFile, options: TextSource) -> Iterator[Document]:
    """Yield a document per row of an Arrow file, in the random-access or the streaming format, or a Feather file."""
    with _pyarrow(file) as pa, pa.memory_map(str(file.path)) as table:
        try:
            reader = pa.ipc.open_file(table)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            table.seek(0)
            reader = batches = pa.ipc.open_stream(table)
        column = _string_column(pa, reader.schema, file, options.field)
        yield from numbered(file.name, _column_texts(batches, column))


@contextlib.contextmanager
def _pyarrow(file: InputFile) -> Iterator[Any]:
    """Import pyarrow and report its errors as `UnmaskError`."""
    if file.compression:
        raise UnmaskError(f"{file.label} must be decompressed first; its columns are compressed already.")
    try:
        import pyarrow
    except ImportError as error:
        raise UnmaskError(f"{file.label} needs the package pyarrow; run: pip install 'unmask[data]'.") from error
    try:
        yield pyarrow
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UnmaskError(
            f"{file.label} is not a complete {file.format} file ({reason}); download it again."
        ) from error


def _string_column(pa: Any, schema: Any, file: InputFile, wanted: str | None) -> str:
    def holds_strings(kind: Any) -> bool:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)

    fields = {field.name: holds_strings(field.type) for field in schema}
    column = find_text_field(file.label, fields, wanted)
    if not fields[column]:
        raise UnmaskError(
            f"The column '{column}' of {file.label} holds {schema.field(column).type}, not strings; "
            "set data.source.field (--field) to one that does."
        )
    return column


def _column_texts(batches: Iterable[Any], column: str) -> Iterator[str]:
    for batch in batches:
        values = batch.column(column)
        values.validate(full=True)  # wrong offsets in a damaged file would crash the process
        for start in range(0, len(values), ROWS_AT_ONCE):
            yield from filter(None, values.slice(start, ROWS_AT_ONCE).to_pylist())


RECORD_READERS: dict[str, Callable[[InputFile, TextSource], Iterator[Document]]] = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_list,
    ".csv": partial(read_csv, ","),
    ".tsv": partial(read_csv, "\t"),
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".feather": read_arrow,
}
"""Readers of the formats whose documents are fields of records."""
READERS: dict[str, Callable[[InputFile, TextSource], Iterator[Document]]] = {
    ".txt": read_plain,
    ".md": read_plain,
    **RECORD_READERS,
    **{suffix: lambda file, options: fasta.read_fasta(file) for suffix in fasta.FORMATS},
}


class TextSource(FileSource, PlainTextOptions):
    """Files and folders of plain text, JSON Lines, JSON, CSV, TSV, Parquet, Arrow and FASTA.

    A file is read by its suffix. With another suffix it is plain text if it is named explicitly or matches a pattern;
    so are files without a suffix in a folder, such as README, unless they are binary. Text is unchanged, line ends
    included, except for a byte-order mark. Documents of files with several are named ``file#number``.
    field: the field or column with the text in JSON, CSV, Parquet and Arrow; by default ``text`` or else the only one
    that holds strings. A null is not a document.
    """

    name: Literal["text"] = "text"
    field: str | None = None
    formats: ClassVar[Collection[str]] = READERS

    def check(self) -> None:
        super().check()
        files = chain.from_iterable(map(self._files, self._paths()))
        if self.field is not None and not any(file.format in RECORD_READERS for file in files):
            raise UnmaskError(
                f"data.source.field (--field) is '{self.field}', and {self._paths()[0]} has no fields; leave it out, "
                f"or rename the file if it has records ({', '.join(RECORD_READERS)})."
            )

    def reads(self, file: InputFile, matches_pattern: bool) -> bool:
        """Return whether a file has a known suffix, or is text and either matches a pattern or has no suffix."""
        return file.format in READERS or ((matches_pattern or not file.format) and file.is_text())

    def read_file(self, file: InputFile) -> Iterator[Document]:
        return READERS.get(file.format, read_plain)(file, self)


class StdinSource(PlainTextOptions):
    """Standard input, kept in a temporary file until the process ends so that it can be read again."""

    name: Literal["stdin"] = "stdin"
    persistent: ClassVar[bool] = False

    def documents(self) -> Iterator[Document]:
        """Yield the documents of standard input; empty input is an error."""
        file = InputFile(Path(_kept_input(sys.stdin).name, "text"), "stdin", "Standard input")
        yield from not_empty(read_plain(file, self), "Standard input is empty; pipe text into it or name a file.")


@cache
def _kept_input(stream: IO[str]) -> tempfile.TemporaryDirectory[str]:
    """Copy a stream to the file 'text' in a temporary folder, which is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="unmask-")
    try:
        with open(Path(folder.name, "text"), "wb") as copy:
            shutil.copyfileobj(stream.buffer, copy)  # type: ignore[attr-defined]
    except OSError as error:
        folder.cleanup()
        raise UnmaskError(
            f"Standard input cannot be stored in {tempfile.gettempdir()} ({error.strerror}); "
            "free space there or set the environment variable TMPDIR."
        ) from error
    return folder
