"""FASTA: nucleotide sequences as texts of the letters A, C, G, T and N.

A record is a document. Its lines are joined; small letters (soft masking) become capitals, U becomes T, and the other
IUPAC codes and gaps become N.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby, islice
from typing import IO

from unmask.data.dna import reverse_complement_of_text
from unmask.data.sources.base import Document
from unmask.data.sources.opening import File
from unmask.data.sources.pieces import in_pieces
from unmask.data.sources.readers.options import Reading
from unmask.errors import UnmaskError

OPPOSITE = "/rc"
"""What the name of a reverse complement ends with."""
LINE = 1 << 16
LINES = 256
CHUNK = 1 << 20

_STRANGE = b"?"
_SPACE = b" \t\r\n"


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
        for name, lines in _records(stream, file):
            yield from documents(f"{file.name}#{name}", _sequence(lines, file))


def _records(stream: IO[bytes], file: File) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Names and the lines of their sequences; those of one must be taken before the next is asked for."""
    name = None
    for is_header, lines in groupby(iter(partial(stream.readline, LINE), b""), lambda line: line.startswith(b">")):
        if is_header:
            *_, header = lines
            name = (header[1:].decode("utf-8", "replace").split() or [""])[0]
        elif name is not None:
            yield name, lines
        elif any(map(bytes.strip, lines)):
            raise UnmaskError(f"{file.where} does not begin with a line '>name', as FASTA does; check the file.")


def _sequence(lines: Iterator[bytes], file: File) -> Iterator[str]:
    while block := b"".join(islice(lines, LINES)):
        cleaned = block.translate(_LETTERS, _SPACE)
        if _STRANGE in cleaned:
            raise _not_dna(file)
        yield cleaned.decode("ascii")


def _not_dna(file: File) -> UnmaskError:
    """The file is read once more, since lines are not counted on the way."""
    with file.bytes() as stream:
        for number, line in enumerate(stream, start=1):
            place = line.translate(_LETTERS, _SPACE).find(_STRANGE)
            if place >= 0 and not line.startswith(b">"):
                letter = line.translate(None, _SPACE)[place : place + 1].decode("ascii", "backslashreplace")
                return UnmaskError(
                    f"{file.where}, line {number}, has '{letter}' in a sequence, which stands for no nucleotide; "
                    "give DNA (proteins can be read as text: name the file .txt)."
                )
    return UnmaskError(f"{file.where} changed while it was read; run again when nothing writes to it.")


def _both_strands(name: str, parts: Iterator[str]) -> Iterator[Document]:
    """The strand as it is read, then its opposite from a copy, which is on disk where it is long."""
    with tempfile.SpooledTemporaryFile(max_size=CHUNK) as copy:
        yield from in_pieces(name, _copied(parts, copy))
        yield from in_pieces(name + OPPOSITE, _backwards(copy))


def _copied(parts: Iterable[str], copy: IO[bytes]) -> Iterator[str]:
    for part in parts:
        copy.write(part.encode("ascii"))
        yield part


def _backwards(copy: IO[bytes]) -> Iterator[str]:
    for end in range(copy.tell(), 0, -CHUNK):
        start = max(end - CHUNK, 0)
        copy.seek(start)
        yield reverse_complement_of_text(copy.read(end - start).decode("ascii"))
