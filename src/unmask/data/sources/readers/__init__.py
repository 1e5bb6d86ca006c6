"""One reader a format, found by a file's suffix. A reader turns a file into documents and holds little of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from unmask.data.sources.base import Document
from unmask.data.sources.opening import File
from unmask.data.sources.readers.csv_rows import read_csv, read_tsv
from unmask.data.sources.readers.fasta import read_fasta
from unmask.data.sources.readers.json_lines import read_json_lines
from unmask.data.sources.readers.json_list import read_json_list
from unmask.data.sources.readers.options import Reading
from unmask.data.sources.readers.plain import read_plain
from unmask.data.sources.readers.tables import read_arrow, read_parquet

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
