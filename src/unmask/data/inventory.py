"""What is left of documents when their text has gone by."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from unmask.data.sources import Document

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
