"""What is left of documents when their text has gone by."""

from __future__ import annotations

import re
import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from unmask.registry import Component


@dataclass(slots=True)  # never changed, but freezing makes one four times as slow, and a corpus has millions
class Document:
    """One text with a name that says where it is from, or a piece of one.

    more: whether the text goes on in the next document, which then has the same name. A source cuts a text that is too
    long to be held; all its pieces together are the text, to the character.
    """

    name: str
    text: str
    more: bool = False


class Source(Component):
    """Documents, and perhaps an opinion on which of them are for validation.

    A source yields the same documents in the same order every time it is asked, since a corpus is read more than once
    (to split it, to train a tokenizer, to encode it).
    """

    persistent: ClassVar[bool] = True
    """Whether another program run can read the same documents again."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """All documents, in one fixed order, from the start at each call."""

    def held_out(self, name: str) -> bool | None:
        """Whether the document is for validation; None leaves that to the split."""
        return None

    def split_key(self, name: str) -> str:
        """Documents of one key belong together and go to the same part of a split; each is alone unless told."""
        return name

    def bits_per_character(self) -> float | None:
        """Entropy of its text, the least that any model can reach, where the law of the text is known."""
        return None

    def skipped_files(self) -> dict[str, int]:
        """How many files of each suffix lie in the source's folders and are not read."""
        return {}


PIECE = 1 << 24
"""Characters from which on a text is cut: at the next end of a word, or after twice as many where no word ends."""

Text = str | Iterator[str]
"""A text, or its consecutive parts where it may be too long to be held."""

WORD_END = re.compile(r"(?<=\S)(?=[ \n])")


def in_pieces(name: str, text: Text) -> Iterator[Document]:
    """One text as documents of one name: a single one, several where it is long, none where it is empty."""
    held = ""
    for piece in _pieces([text] if isinstance(text, str) else text):
        if held:
            yield Document(name, held, more=True)
        held = piece
    if held:
        yield Document(name, held)


def numbered(name: str, texts: Iterable[Text]) -> Iterator[Document]:
    """Texts named ``name#0``, ``name#1``, ...; those without any character are dropped and not counted."""
    number = 0
    for text in texts:
        label = f"{name}#{number}"
        if isinstance(text, str) and 0 < len(text) <= PIECE:
            yield Document(label, text)
            number += 1
        else:
            cut = in_pieces(label, text)
            first = next(cut, None)
            if first is not None:
                yield first
                yield from cut
                number += 1


def _pieces(parts: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size > 2 * PIECE:
            *whole, rest = _cut("".join(held))
            yield from whole
            held, size = [rest], len(rest)
    yield from _cut("".join(held))


def _cut(text: str) -> Iterator[str]:
    """The pieces of a text. If it goes on, all but the last are final."""
    start = 0
    while len(text) - start > PIECE:
        end = _word_end(text, start + PIECE, start + 2 * PIECE)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _word_end(text: str, first: int, last: int) -> int:
    """The first place from ``first`` on with a space or line end behind it and none before; ``last`` without one."""
    spaces = [at for space in " \n" if (at := text.find(space, first, last)) >= 0]  # much faster than the pattern
    found = WORD_END.search(text, min(spaces), last) if spaces else None
    return found.start() if found else last


_SIZES = struct.Struct(">QQ")


class Inventory:
    """How many documents there were, how long they were, and a hash of their names and texts in their order.

    It takes the same few bytes for one document and for a billion, and is the same however a source cuts long texts.
    """

    def __init__(self) -> None:
        self.documents = self.bytes = self.characters = 0
        self._hash = blake2b(digest_size=20)
        self._begun = 0  # bytes of the document that is not complete yet

    def add(self, document: Document) -> None:
        """Note a document, or the next part of one."""
        text = document.text.encode("utf-8", "surrogatepass")
        self._hash.update(text)
        self._begun += len(text)
        self.bytes += len(text)
        self.characters += len(document.text)
        if not document.more:
            self._close(document.name.encode("utf-8", "surrogatepass"))

    def note(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Pass documents on and note each."""
        for document in documents:
            self.add(document)
            yield document

    @property
    def digest(self) -> str:
        """Equal for equal documents."""
        return self._hash.hexdigest()

    def _close(self, name: bytes) -> None:
        """The sizes come last, so that what was hashed can be taken apart from its end in one way only."""
        self._hash.update(name + _SIZES.pack(len(name), self._begun))
        self._begun = 0
        self.documents += 1


def take_inventory(documents: Iterable[Document]) -> Inventory:
    """Read documents to their end."""
    inventory = Inventory()
    for document in documents:
        inventory.add(document)
    return inventory


def joined(inventories: Sequence[Inventory]) -> Inventory:
    """The inventory of several corpora together; of one alone its own."""
    if len(inventories) == 1:
        return inventories[0]
    together = Inventory()
    for one in inventories:
        together.documents += one.documents
        together.bytes += one.bytes
        together.characters += one.characters
        together._hash.update(one._hash.digest())
    return together
