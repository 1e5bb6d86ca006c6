"""DNA in FASTA files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import ClassVar, Literal

from unmask.data.sources.base import Document
from unmask.data.sources.folders import FileSource
from unmask.data.sources.opening import File
from unmask.data.sources.readers import FASTA
from unmask.data.sources.readers.fasta import OPPOSITE, read_fasta
from unmask.data.sources.readers.options import Reading


class FastaSource(FileSource):
    """DNA in FASTA files and folders of them: each record is a document of A, C, G, T and N.

    reverse_complement: each record is followed by its opposite strand, named as it is with ``/rc`` behind, and both go
    to the same part of a split.
    """

    name: Literal["fasta"] = "fasta"
    reverse_complement: bool = False
    kinds: ClassVar[Collection[str]] = FASTA

    def split_key(self, name: str) -> str:
        """The name of the record, for both of its strands."""
        return name.removesuffix(OPPOSITE) if self.reverse_complement else name

    def _documents_of(self, file: File) -> Iterator[Document]:
        return read_fasta(file, Reading(reverse_complement=self.reverse_complement))
