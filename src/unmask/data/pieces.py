"""Long texts in pieces, so that memory stays small.

Where a text is cut depends on the text alone, not on the parts in which its source hands it out: the pieces of a corpus
can be counted, and work on them resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unmask.data.sources import Document
from unmask.data.sources.base import WORD_END
from unmask.errors import UnmaskError

Counts = npt.NDArray[np.int64]

LONG = 1 << 16  # a text of more characters is cut
CONTEXT = 64  # characters at either side of a cut that say what a tokenizer makes of it
BATCH_CHARACTERS = 1 << 21


class Piece(NamedTuple):
    """A part of a document's text, mostly all of it.

    before: the last characters of the piece before it, nothing where it is the first. start: where in the document it
    begins. more: whether the document goes on.
    """

    name: str
    text: str
    before: str = ""
    start: int = 0
    more: bool = False


FindCut = Callable[[str, int, bool], "int | None"]
"""(text, start, more): where the piece that begins at ``start`` ends; None where the text does not reach that far.

``more``: the text goes on behind what is there of it.
"""


def cut(documents: Iterable[Document], find_cut: FindCut) -> Iterator[Piece]:
    """The pieces of all documents, in order."""
    held, begin, before = "", 0, ""
    for document in documents:
        if len(document.text) <= LONG and not (document.more or begin or held):
            yield Piece(document.name, document.text)  # what nearly all are, the short way
            continue
        held += document.text
        at = 0
        while (end := find_cut(held, at, document.more)) is not None:
            yield Piece(document.name, held[at:end], before, begin + at, True)
            before = held[max(at, end - CONTEXT) : end]
            at = end
        held, begin = held[at:], begin + at
        if not document.more:
            yield Piece(document.name, held, before, begin)
            held, begin, before = "", 0, ""


def after_characters(text: str, start: int, more: bool) -> int | None:
    """Cut behind so many characters, whatever they are."""
    return start + LONG if len(text) > start + LONG else None


def word_end(text: str, start: int, more: bool, joins: Callable[[str, str], bool] | None = None) -> int | None:
    """Cut at the first end of a word behind so many characters; the white space goes to the right.

    joins: whether a tokenizer tells apart what stands to the left and to the right of a cut; where it does not, the
    piece gets longer.
    """
    at = start + LONG
    while found := WORD_END.search(text, at):
        end = found.start()
        if more and len(text) < end + CONTEXT:
            return None
        if joins is None or joins(text[max(start, end - CONTEXT) : end], text[end : end + CONTEXT]):
            return end
        at = end + LONG
    return None


def batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in groups of about so many characters."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Joined:
    """The texts of some pieces as one, which knows whose each character is. Half a surrogate pair is an `UnmaskError`.

    utf8: the bytes of them all. characters, bytes: int64 [n], the size of each piece.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.text = "".join([piece.text for piece in pieces])
        self.characters = np.array([len(piece.text) for piece in pieces], dtype=np.int64)
        try:
            self.utf8 = self.text.encode()
        except UnicodeEncodeError as error:
            name, position = self.whose(error.start)
            raise UnmaskError(
                f"{name} has half a surrogate pair at position {position}, which is no text; decode it as UTF-8 first."
            ) from error
        self.bytes = self.characters if len(self.utf8) == len(self.text) else self._bytes()

    def whose(self, character: int) -> tuple[str, int]:
        """The document in which a character stands, and its position there."""
        ends = np.cumsum(self.characters)
        index = int(np.searchsorted(ends, character, side="right"))
        piece = self.pieces[index]
        return piece.name, piece.start + character - int(ends[index] - self.characters[index])

    def _bytes(self) -> Counts:
        return np.array([len(piece.text.encode()) for piece in self.pieces], dtype=np.int64)
