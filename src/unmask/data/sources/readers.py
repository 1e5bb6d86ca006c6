"""One reader a format, found by a file's suffix. A reader turns a file into documents and holds little of it."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from typing import IO, Any, TextIO

from unmask.data.dna import reverse_complement_of_text
from unmask.data.sources.base import Document, Text, in_pieces, numbered
from unmask.data.sources.files import File
from unmask.errors import UnmaskError, did_you_mean


@dataclass(frozen=True)
class Reading:
    """separator: how plain text is cut. field: where records keep their text. The sources say more about each."""

    separator: str | None = None
    field: str | None = None
    encoding_errors: str = "strict"
    reverse_complement: bool = False


_MISSING = object()


def text_field(where: str, fields: Mapping[str, bool], wanted: str | None) -> str:
    """The wanted field, else ``text``, else the only one that holds strings. fields: whether each holds strings."""
    if wanted is not None:
        if wanted not in fields:
            raise UnmaskError(f"{where} has no field '{wanted}'.{did_you_mean(wanted, fields)}")
        return wanted
    strings = ["text"] if "text" in fields else [name for name, holds in fields.items() if holds]
    if len(strings) != 1:
        raise UnmaskError(
            f"{where} has {'several fields' if strings else 'no field'} with text among "
            f"{', '.join(map(repr, fields)) or 'none at all'}; set the option field to the one to read."
        )
    return strings[0]


def texts_of(where: str, unit: str, records: Iterable[tuple[int, Any]], wanted: str | None) -> Iterator[str]:
    """The texts of numbered records, each an object or itself a text; null is no text.

    The first object decides on the field, and every other must have it. unit: what the numbers count.
    """
    field = None
    for number, record in records:
        text = record
        if isinstance(record, dict):
            if field is None:
                fields = {name: value is None or isinstance(value, str) for name, value in record.items()}
                field = text_field(f"{where}, {unit} {number},", fields, wanted)
            text = record.get(field, _MISSING)
        if isinstance(text, str):
            yield text
        elif text is not None:
            raise UnmaskError(f"{where}, {unit} {number}, {_complaint(text, field)}")


def _complaint(value: Any, field: str | None) -> str:
    if value is _MISSING:
        return f"has no field '{field}'; add it there or set the option field to one that every record has."
    shown = repr(value)
    return f"has {shown if len(shown) < 40 else shown[:40] + '...'} where a text belongs; mend it or remove it."


PLAIN_CHUNK = 1 << 20
PLAIN_LINE = 1 << 20
"""A line of this many characters or more is read in parts, and never separates."""


def read_plain(file: File, how: Reading) -> Iterator[Document]:
    """The documents of a text file."""
    with file.text(how.encoding_errors) as text:
        if how.separator is None:
            yield from in_pieces(file.name, iter(partial(text.read, PLAIN_CHUNK), ""))
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
    while line := text.readline(PLAIN_LINE):
        while line[-1] == "\r" and (following := text.readline(1)):
            line += following
        yield line


def _each_line(text: TextIO) -> Iterator[Text]:
    """Each line is a text. They are read many at a time, as files with millions of lines should not take long."""
    lines = _lines(text)
    while block := text.read(PLAIN_CHUNK) + next(lines, ""):
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
        return len(line) < PLAIN_LINE and separates(line)

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
            column = _csv_column(where, header, row, wanted)
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


def _csv_column(where: str, header: list[str], first: list[str], wanted: str | None) -> int:
    """The place of the column with the text; what the first row has no number in holds strings."""
    fields = {name: not _is_number(cell) for name, cell in zip(header, first, strict=True)}
    return header.index(text_field(where, fields, wanted))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


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


JSON_CHUNK = 1 << 16
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
        new = self._text.read(max(JSON_CHUNK, len(self._held)))
        self._held += new
        return bool(new)

    def _wrong(self, complaint: str, at: int | None = None) -> UnmaskError:
        line = self._lines + self._held.count("\n", 0, self._at if at is None else at)
        return UnmaskError(f"{self._where}, line {line}, {complaint}.")


ROWS = 256
BUFFER = 1 << 20
ARROW_FILE = b"ARROW1"  # what the random-access format begins with; the streaming one does not


def read_parquet(file: File, how: Reading) -> Iterator[Document]:
    """A document for each row; the rows of one group are decoded as they are needed."""
    with _pyarrow(file) as pa:
        from pyarrow import parquet

        with parquet.ParquetFile(file.path, buffer_size=BUFFER) as table:
            column = _table_column(pa, table.schema_arrow, file, how)
            batches = table.iter_batches(ROWS, columns=[column], use_threads=False)
            yield from numbered(file.name, _texts(pa, batches, column, file, how))


def read_arrow(file: File, how: Reading) -> Iterator[Document]:
    """A document for each row of an Arrow file, of either format, or of a Feather file."""
    with _pyarrow(file) as pa, pa.memory_map(str(file.path)) as table:
        batches = _batches(pa, table)
        column = _table_column(pa, batches.schema, file, how)
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


def _table_column(pa: Any, schema: Any, file: File, how: Reading) -> str:
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


OPPOSITE = "/rc"
"""What the name of a reverse complement ends with."""
FASTA_LINE = 1 << 16
LINES = 256
FASTA_CHUNK = 1 << 20

_STRANGE = b"?"
_FASTA_SPACE = b" \t\r\n"


def _letters() -> bytes:
    """What becomes of each byte of a sequence."""
    table = bytearray(_STRANGE * 256)
    for codes, letter in (("A", "A"), ("C", "C"), ("G", "G"), ("TU", "T"), ("NRYSWKMBDHVX-", "N")):
        for code in codes + codes.lower():
            table[ord(code)] = ord(letter)
    return bytes(table)


_LETTERS = _letters()


def read_fasta(file: File, how: Reading) -> Iterator[Document]:
    """A document for each record with a sequence, named by the first word of its header.

    With ``how.reverse_complement`` the opposite strand follows each record as a document of its own.
    """
    documents = _both_strands if how.reverse_complement else in_pieces
    with file.bytes() as stream:
        for name, lines in _fasta_records(stream, file):
            yield from documents(f"{file.name}#{name}", _sequence(lines, file))


def _fasta_records(stream: IO[bytes], file: File) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Names and the lines of their sequences; those of one must be taken before the next is asked for."""
    name = None
    for is_header, lines in groupby(
        iter(partial(stream.readline, FASTA_LINE), b""), lambda line: line.startswith(b">")
    ):
        if is_header:
            *_, header = lines
            name = (header[1:].decode("utf-8", "replace").split() or [""])[0]
        elif name is not None:
            yield name, lines
        elif any(map(bytes.strip, lines)):
            raise UnmaskError(f"{file.where} does not begin with a line '>name', as FASTA does; check the file.")


def _sequence(lines: Iterator[bytes], file: File) -> Iterator[str]:
    while block := b"".join(islice(lines, LINES)):
        cleaned = block.translate(_LETTERS, _FASTA_SPACE)
        if _STRANGE in cleaned:
            raise _not_dna(file)
        yield cleaned.decode("ascii")


def _not_dna(file: File) -> UnmaskError:
    """The file is read once more, since lines are not counted on the way."""
    with file.bytes() as stream:
        for number, line in enumerate(stream, start=1):
            place = line.translate(_LETTERS, _FASTA_SPACE).find(_STRANGE)
            if place >= 0 and not line.startswith(b">"):
                letter = line.translate(None, _FASTA_SPACE)[place : place + 1].decode("ascii", "backslashreplace")
                return UnmaskError(
                    f"{file.where}, line {number}, has '{letter}' in a sequence, which stands for no nucleotide; "
                    "give DNA (proteins can be read as text: name the file .txt)."
                )
    return UnmaskError(f"{file.where} changed while it was read; run again when nothing writes to it.")


def _both_strands(name: str, parts: Iterator[str]) -> Iterator[Document]:
    """The strand as it is read, then its opposite from a copy, which is on disk where it is long."""
    with tempfile.SpooledTemporaryFile(max_size=FASTA_CHUNK) as copy:
        yield from in_pieces(name, _copied(parts, copy))
        yield from in_pieces(name + OPPOSITE, _backwards(copy))


def _copied(parts: Iterable[str], copy: IO[bytes]) -> Iterator[str]:
    for part in parts:
        copy.write(part.encode("ascii"))
        yield part


def _backwards(copy: IO[bytes]) -> Iterator[str]:
    for end in range(copy.tell(), 0, -FASTA_CHUNK):
        start = max(end - FASTA_CHUNK, 0)
        copy.seek(start)
        yield reverse_complement_of_text(copy.read(end - start).decode("ascii"))


Reader = Callable[[File, Reading], Iterator[Document]]

FASTA: dict[str, Reader] = dict.fromkeys((".fa", ".fasta", ".fna"), read_fasta)
READERS: dict[str, Reader] = {
    ".txt": read_plain,
    ".md": read_plain,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_list,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".feather": read_arrow,
    **FASTA,
}
