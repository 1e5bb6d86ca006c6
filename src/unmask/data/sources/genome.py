"""Genomes: an indexed FASTA file, and a source that reads intervals of it without loading a chromosome."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import Field, model_validator

from unmask.data.documents import Document, in_parts, not_empty
from unmask.data.sources import Source
from unmask.data.sources.fasta import INVALID, LINE_BYTES, SoftMasked, letter_table
from unmask.data.sources.files import InputFile, find_file
from unmask.errors import UnmaskError, did_you_mean
from unmask.io import build_once, cache_dir

INTERVAL = 131_072
"""Bases of an interval in the published split of the human genome."""
BASES_AT_ONCE = 1 << 20
VALIDATION_WORDS = ("valid", "validation", "val", "dev")
INDEX, SEQUENCE = "index.fai", "sequence.fa"
HEADER_WORDS = ("#", "track", "browser")
POSITION = re.compile("[0-9]{1,18}")
_REGION = re.compile(r"([^:]+)(?::([\d,_]{1,25})-([\d,_]{1,25}))?")


# ---- an indexed FASTA -----------------------------------------------------------------------------------------------


class Genome:
    """The records of a FASTA file by name and position, read through an index.

    The index is made once and kept in the cache folder; a compressed file is unpacked there once. A record is also
    found with or without "chr" before its name.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyfaidx
        except ImportError as error:
            raise UnmaskError(f"'{path}' needs the package pyfaidx; run: pip install 'unmask[dna]'.") from error
        self.path = path
        file = InputFile(path, path.name, f"'{path}'")
        try:
            status = path.stat()
        except OSError as error:
            raise UnmaskError(f"'{path}' cannot be read ({error.strerror}); check the path.") from error
        key = f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}"
        folder = cache_dir() / "genomes" / blake2b(key.encode(), digest_size=10).hexdigest()

        def build(folder: Path) -> None:
            plain = file
            if file.compression:
                plain = InputFile(folder / SEQUENCE, SEQUENCE, file.label)
                with file.open_bytes() as packed, open(plain.path, "wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked, BASES_AT_ONCE)
            with plain.open_bytes() as stream:
                (folder / INDEX).write_text(fasta_index(stream, file.label), encoding="utf-8")

        build_once(folder, lambda folder: (folder / INDEX).is_file(), build)
        sequence = folder / SEQUENCE if file.compression else path
        self._records = pyfaidx.Fasta(
            str(sequence), indexname=str(folder / INDEX), rebuild=False, as_raw=True, build_index=False
        )

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of bases of each record."""
        return {name: entry.rlen for name, entry in self._records.faidx.index.items()}

    def record(self, name: str, where: str = "") -> str:
        """The name of a record in the file, with or without "chr"; `where` begins the message if there is none."""
        other = name.removeprefix("chr") if name.startswith("chr") else f"chr{name}"
        for one in (name, other):
            if one in self.sizes:
                return one
        raise UnmaskError(f"{where}'{self.path}' has no record '{name}'.{did_you_mean(name, self.sizes)}")

    def read(self, name: str, start: int, end: int, soft_masked: SoftMasked = "upper") -> str:
        """The bases start, ..., end - 1 of a record, counted from 0."""
        letters = self._records[name][start:end].encode("ascii", "replace")
        cleaned = letters.translate(letter_table(soft_masked))
        if (place := cleaned.find(INVALID)) >= 0:
            letter = letters[place : place + 1].decode()
            raise UnmaskError(
                f"'{self.path}' has '{letter}' at base {start + place + 1} of '{name}', which is not a nucleotide "
                "code; give DNA."
            )
        return cleaned.decode("ascii")


def fasta_index(stream: BinaryIO, label: str) -> str:
    """The index of `samtools faidx`: name, bases, offset of the first base, and bases and bytes of a line.

    That of pyfaidx accepts a last line that is longer than the others, and then reads wrong bases.
    """
    index: dict[str, list[int]] = {}
    offset = number = 0
    while head := stream.readline(LINE_BYTES):
        end, size = head, len(head)
        while not end.endswith(b"\n") and (piece := stream.readline(LINE_BYTES)):
            end, size = end[-1:] + piece, size + len(piece)
        bases = size - len(end) + len(end.rstrip(b"\r\n"))
        offset, number = offset + size, number + 1
        if head.startswith(b">"):
            name = (head[1:].decode("utf-8", "replace").split() or [""])[0]
            if not name or name in index:
                raise UnmaskError(f"{label}, line {number}: a record must have a name of its own, got '>{name}'.")
            entry = index[name] = [0, offset, 0, 0]
            is_last = False
        elif not index:
            if bases:
                raise UnmaskError(f"{label} must begin with a line '>name', as FASTA does; check the file.")
        elif bases and (is_last or (entry[0] and bases > entry[2])):
            raise UnmaskError(
                f"{label}, line {number}: the lines of a record must be equally long, except for the last, which may "
                "be shorter; wrap them anew, for example with 'seqkit seq -w 60'."
            )
        else:
            entry[2:] = entry[2:] if entry[0] else (bases, size)
            is_last = [bases, size] != entry[2:] or not bases
            entry[0] += bases
    if not index:
        raise UnmaskError(f"{label} has no records; give a FASTA file.")
    return "".join("\t".join(map(str, (name, *entry))) + "\n" for name, entry in index.items())


# ---- intervals ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """The bases start, ..., end - 1 of a record, counted from 0, and the split that they belong to.

    where: what error messages begin with, such as the line of a BED file.
    """

    record: str
    start: int
    end: int
    split: str = ""
    where: str = ""

    @property
    def name(self) -> str:
        place = f"{self.record}:{self.start}-{self.end}"
        return f"{self.split}#{place}" if self.split else place


def read_intervals(path: Path) -> Iterator[Interval]:
    """The intervals of a BED file whose fourth column is the split."""
    file = InputFile(path, path.name, str(path))
    with file.open_text() as lines:
        for number, line in enumerate(lines, start=1):
            fields = line.split()
            if not fields or fields[0].startswith(HEADER_WORDS):
                continue
            where = f"'{path}', line {number}: "
            if len(fields) < 4 or not all(map(POSITION.fullmatch, fields[1:3])):
                raise UnmaskError(
                    f"{where}an interval must be a record, a start, an end and a split, got {line.rstrip()[:60]!r}."
                )
            start, end = int(fields[1]), int(fields[2])
            if start >= end:
                raise UnmaskError(f"{where}the end must be greater than the start, got {start} and {end}.")
            yield Interval(fields[0], start, end, fields[3], where)


def find_data_file(name: str) -> Path:
    """A file by its path, or by its path below UNMASK_DATA; it may be compressed."""
    root = os.environ.get("UNMASK_DATA")
    for path in (Path(name).expanduser(), *([Path(root, name)] if root else [])):
        if (found := find_file(path)) is not None:
            return found
    raise UnmaskError(f"There is no file '{name}', here or below the folder UNMASK_DATA; give its path or download it.")


class GenomeSource(Source):
    """Intervals of an indexed FASTA file, each a document of A, C, G, T and N named by its place.

    fasta: the file, or its path below UNMASK_DATA; it may be compressed. intervals: a BED file with the columns record,
    start, end and split. splits: which of its intervals are read; those of "valid" are for validation. regions: instead
    of a BED file, records or parts of them, such as ``"chr20:0-1000000"``, counted from 0, end excluded, which are cut
    into intervals of `interval` bases; without either, all records. unknown: intervals with a larger share of N are
    left out. soft_masked: what becomes of lower-case bases; "keep" needs a tokenizer that has them, such as
    ``{name: char, alphabet: ACGTNacgtn}``.
    """

    name: Literal["genome"] = "genome"
    fasta: str
    intervals: str | None = None
    splits: list[str] = Field(default_factory=lambda: ["train", "valid"], min_length=1)
    regions: list[str] | None = None
    interval: int = Field(default=INTERVAL, ge=2)
    unknown: float = Field(default=1.0, ge=0, le=1)
    soft_masked: SoftMasked = "upper"

    @model_validator(mode="after")
    def _has_one_kind_of_interval(self) -> GenomeSource:
        if self.intervals is not None and self.regions is not None:
            raise ValueError("intervals and regions exclude each other; give one of them.")
        for region in self.regions or ():
            if _REGION.fullmatch(region) is None:
                raise ValueError(f"a region must be a record or record:start-end, got '{region}'.")
        return self

    def check(self) -> None:
        """Find the files, and read the first interval of the BED file."""
        find_data_file(self.fasta)
        if self.intervals is not None:
            next(read_intervals(find_data_file(self.intervals)), None)

    def documents(self) -> Iterator[Document]:
        """Yield the intervals in the order of the BED file or of the regions."""
        genome = Genome(find_data_file(self.fasta))
        intervals = self._from_regions(genome) if self.intervals is None else self._from_bed(genome, self.intervals)
        if self.unknown < 1:
            intervals = (one for one in intervals if self._share_of_n(genome, one) <= self.unknown)
        documents = chain.from_iterable(in_parts(one.name, self._pieces(genome, one)) for one in intervals)
        among = "" if self.intervals is None else f" of the splits {', '.join(self.splits)}"
        yield from not_empty(documents, f"'{self.fasta}' has no intervals{among} to read; choose others.")

    def held_out(self, name: str) -> bool | None:
        """Return whether an interval of a BED file is for validation."""
        split, mark, _ = name.partition("#")
        return split in VALIDATION_WORDS if mark else None

    def _from_bed(self, genome: Genome, bed: str) -> Iterator[Interval]:
        for interval in read_intervals(find_data_file(bed)):
            if interval.split in self.splits:
                size = genome.sizes[genome.record(interval.record, interval.where)]
                if interval.end > size:
                    raise UnmaskError(
                        f"{interval.where}the end must be at most {size}, the bases of '{interval.record}' in "
                        f"'{genome.path}', got {interval.end}."
                    )
                yield interval

    def _from_regions(self, genome: Genome) -> Iterator[Interval]:
        for region in self.regions or genome.sizes:
            found: Any = _REGION.fullmatch(region)
            whole = self.regions is None or found[2] is None
            name = genome.record(region if whole else found[1])
            size = genome.sizes[name]
            start, end = (0, size) if whole else (int(re.sub("[,_]", "", found[i])) for i in (2, 3))
            if not start < end <= size and not whole:
                raise UnmaskError(
                    f"The region '{region}' must be inside its record, which has {size} bases in '{genome.path}'."
                )
            for first in range(start, end, self.interval):
                yield Interval(name, first, min(first + self.interval, end))

    def _pieces(self, genome: Genome, interval: Interval) -> Iterator[str]:
        record = genome.record(interval.record)
        for start in range(interval.start, interval.end, BASES_AT_ONCE):
            yield genome.read(record, start, min(start + BASES_AT_ONCE, interval.end), self.soft_masked)

    def _share_of_n(self, genome: Genome, interval: Interval) -> float:
        unknown = sum(piece.upper().count("N") for piece in self._pieces(genome, interval))
        return unknown / (interval.end - interval.start)
