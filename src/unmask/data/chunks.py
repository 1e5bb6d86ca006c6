"""Long texts in chunks, so that memory stays small.

Chunks depend on the text alone, not on the parts in which a source yields it, so work on them can be resumed by
counting them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unmask.data.sources.base import Document
from unmask.errors import UnmaskError

Counts = npt.NDArray[np.int64]

CHUNK_CHARACTERS = 1 << 16
"""A longer text is encoded in chunks of about this size."""
CONTEXT_CHARACTERS = 64
"""Text on either side of a chunk boundary that decides whether tokens cross it."""
BATCH_CHARACTERS = 1 << 21

WORD_END = re.compile(r"(?<=\S)(?=[ \n])")


class Chunk(NamedTuple):
    """A part of a document's text, usually all of it.

    before: the last characters of the previous chunk. start: position in the document. more: another chunk follows.
    """

    name: str
    text: str
    before: str = ""
    start: int = 0
    more: bool = False


FindEnd = Callable[[str, int, bool], "int | None"]
"""(text, start, more) -> end of the chunk that begins at `start`, or None to take the rest of the text.

more: the text continues after what has been read; None then means that more has to be read first.
"""


def split_into_chunks(documents: Iterable[Document], find_end: FindEnd) -> Iterator[Chunk]:
    """Yield the chunks of all documents in order."""
    text, offset, before = "", 0, ""
    for document in documents:
        if len(document.text) <= CHUNK_CHARACTERS and not (document.more or offset or text):
            yield Chunk(document.name, document.text)
            continue
        text += document.text
        start = 0
        while (end := find_end(text, start, document.more)) is not None:
            yield Chunk(document.name, text[start:end], before, offset + start, True)
            before = text[max(start, end - CONTEXT_CHARACTERS) : end]
            start = end
        text, offset = text[start:], offset + start
        if not document.more:
            yield Chunk(document.name, text, before, offset)
            text, offset, before = "", 0, ""


def end_after_characters(text: str, start: int, more: bool) -> int | None:
    """End a chunk after a fixed number of characters."""
    return start + CHUNK_CHARACTERS if len(text) > start + CHUNK_CHARACTERS else None


def end_after_word(
    text: str, start: int, more: bool, is_boundary: Callable[[str, str], bool] | None = None
) -> int | None:
    """End a chunk before the white space after a word. is_boundary: whether no token crosses (left, right) text."""
    position = start + CHUNK_CHARACTERS
    while found := WORD_END.search(text, position):
        end = found.start()
        if more and len(text) < end + CONTEXT_CHARACTERS:
            return None
        left, right = text[max(start, end - CONTEXT_CHARACTERS) : end], text[end : end + CONTEXT_CHARACTERS]
        if is_boundary is None or is_boundary(left, right):
            return end
        position = end + CHUNK_CHARACTERS
    return None


class ChunkBatch:
    """Chunks that are encoded together. characters, bytes: int64 [n], the size of each chunk."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.text = "".join([chunk.text for chunk in chunks])
        self.characters = np.array([len(chunk.text) for chunk in chunks], dtype=np.int64)
        try:
            self.utf8 = self.text.encode()
        except UnicodeEncodeError as error:
            name, position = self.locate(error.start)
            raise UnmaskError(
                f"{name} has half a surrogate pair at position {position}; decode the text as UTF-8 first."
            ) from error
        self.bytes = self.characters
        if len(self.utf8) != len(self.text):
            self.bytes = np.array([len(chunk.text.encode()) for chunk in chunks], dtype=np.int64)

    @classmethod
    def group(cls, chunks: Iterable[Chunk]) -> Iterator[ChunkBatch]:
        """Group chunks into batches of about `BATCH_CHARACTERS`."""
        batch: list[Chunk] = []
        size = 0
        for chunk in chunks:
            batch.append(chunk)
            size += len(chunk.text)
            if size >= BATCH_CHARACTERS:
                yield cls(batch)
                batch, size = [], 0
        if batch:
            yield cls(batch)

    def locate(self, character: int) -> tuple[str, int]:
        """Return the document of a character of the batch, and its position there."""
        ends = np.cumsum(self.characters)
        index = int(np.searchsorted(ends, character, side="right"))
        chunk = self.chunks[index]
        return chunk.name, chunk.start + character - int(ends[index] - self.characters[index])
