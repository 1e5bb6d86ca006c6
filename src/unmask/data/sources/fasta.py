"""DNA: its letters, reverse complements, and a source that reads FASTA files."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from functools import cache, partial
from itertools import groupby, islice
from typing import IO, ClassVar, Literal

from unmask.data.documents import Document, in_parts
from unmask.data.sources.files import FileSource, InputFile
from unmask.errors import UnmaskError

LETTERS = "ACGTN"
"""The four bases and N, any of them; a letter's index is its token id."""

FORMATS = (".fa", ".fasta", ".fna")
REVERSE_SUFFIX = "/rc"
"""The names of reverse complements end with this."""

CHUNK_BYTES = 1 << 20
LINE_BYTES = 1 << 16
LINES_AT_ONCE = 256

INVALID = b"?"
_WHITE_SPACE = b" \t\r\n"
_CODES = {"A": "A", "C": "C", "G": "G", "T": "TU", "N": "NRYSWKMBDHVX-"}
_COMPLEMENTS = str.maketrans("ACGTacgt", "TGCAtgca")

SoftMasked = Literal["upper", "keep", "N"]
"""What becomes of lower-case bases, which mark repeats: upper case, unchanged, or N."""


@cache
def letter_table(soft_masked: SoftMasked = "upper") -> bytes:
    """[256] the letter of every byte of a sequence: A, C, G, T, N or, with "keep", one of acgtn; else `INVALID`."""
    letters: dict[int, str] = {}
    for letter, codes in _CODES.items():
        small = {"upper": letter, "keep": letter.lower(), "N": "N"}[soft_masked]
        letters |= {ord(code): letter for code in codes} | {ord(code): small for code in codes.lower()}
    return bytes(ord(letters.get(byte, "?")) for byte in range(256))


def reverse_complement_text(text: str) -> str:
    """Return the reverse complement of a text of A, C, G and T; other characters, such as N, stay as they are."""
    return text.translate(_COMPLEMENTS)[::-1]


class FastaSource(FileSource):
    """DNA in FASTA files and folders of them: each record is a document of A, C, G, T and N.

    reverse_complement: each record is followed by its reverse complement, a document with ``/rc`` after its name; both
    go to the same side of the split. soft_masked: what becomes of lower-case bases; "keep" needs a tokenizer that has
    them, such as ``{name: char, alphabet: ACGTNacgtn}``.
    """

    name: Literal["fasta"] = "fasta"
    reverse_complement: bool = False
    soft_masked: SoftMasked = "upper"
    formats: ClassVar[Collection[str]] = FORMATS

    def split_key(self, name: str) -> str:
        """Return the name of the record, for both strands."""
        return name.removesuffix(REVERSE_SUFFIX) if self.reverse_complement else name

    def read_file(self, file: InputFile) -> Iterator[Document]:
        return read_fasta(file, self.reverse_complement, self.soft_masked)


def read_fasta(file: InputFile, both_strands: bool = False, soft_masked: SoftMasked = "upper") -> Iterator[Document]:
    """Yield a document per record with a sequence, named by the first word of its header.

    The reverse complement is read from the end of a temporary copy of the sequence.
    """
    with file.open_bytes() as stream:
        name = None
        lines = iter(partial(stream.readline, LINE_BYTES), b"")
        for is_header, group in groupby(lines, lambda line: line.startswith(b">")):
            if is_header:
                *_, header = group
                name = f"{file.name}#{(header[1:].decode('utf-8', 'replace').split() or [''])[0]}"
            elif name is not None:
                with tempfile.SpooledTemporaryFile(max_size=CHUNK_BYTES) as copy:
                    sequence = _sequence(group, file, letter_table(soft_masked), copy if both_strands else None)
                    yield from in_parts(name, sequence)
                    if both_strands:
                        yield from in_parts(name + REVERSE_SUFFIX, _reverse_complement_of(copy))
            elif any(map(bytes.strip, group)):
                raise UnmaskError(f"{file.label} must begin with a line '>name', as FASTA does; check the file.")


def _sequence(lines: Iterator[bytes], file: InputFile, table: bytes, copy: IO[bytes] | None) -> Iterator[str]:
    while block := b"".join(islice(lines, LINES_AT_ONCE)):
        letters = block.translate(table, _WHITE_SPACE)
        if INVALID in letters:
            raise _invalid_letter(file)
        if copy is not None:
            copy.write(letters)
        yield letters.decode("ascii")


def _invalid_letter(file: InputFile) -> UnmaskError:
    """Find the line by reading the file again, since lines are not counted while reading."""
    with file.open_bytes() as stream:
        for number, line in enumerate(stream, start=1):
            place = line.translate(letter_table(), _WHITE_SPACE).find(INVALID)
            if place >= 0 and not line.startswith(b">"):
                letter = line.translate(None, _WHITE_SPACE)[place : place + 1].decode("ascii", "backslashreplace")
                return UnmaskError(
                    f"{file.label}, line {number}, has '{letter}' in a sequence, which is not a nucleotide code; "
                    "give DNA (to read proteins as text, name the file .txt)."
                )
    return UnmaskError(f"{file.label} changed while it was read; run again when nothing writes to it.")


def _reverse_complement_of(copy: IO[bytes]) -> Iterator[str]:
    for end in range(copy.tell(), 0, -CHUNK_BYTES):
        start = max(end - CHUNK_BYTES, 0)
        copy.seek(start)
        yield reverse_complement_text(copy.read(end - start).decode("ascii"))
