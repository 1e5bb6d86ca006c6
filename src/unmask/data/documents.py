"""Documents: named texts, whole or in parts, and a digest that identifies a corpus of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from unmask.errors import UnmaskError

MAX_CHARACTERS = 1 << 24
"""A text that is read in parts becomes documents of about this size."""


@dataclass(slots=True)  # not frozen: that makes creation four times slower, and a corpus has millions of documents
class Document:
    """A named text, or a part of one. more: the text continues in the next document, which has the same name."""

    name: str
    text: str
    more: bool = False


def in_parts(name: str, parts: Iterable[str]) -> Iterator[Document]:
    """Yield one text, read in parts, as documents of at most about `MAX_CHARACTERS`; none if it is empty."""
    held: list[str] = []
    size = 0
    for part in filter(None, parts):
        if size >= MAX_CHARACTERS:
            yield Document(name, "".join(held), more=True)
            held, size = [], 0
        held.append(part)
        size += len(part)
    if held:
        yield Document(name, "".join(held))


def numbered(name: str, texts: Iterable[str | Iterable[str]]) -> Iterator[Document]:
    """Yield texts, whole or in parts, as documents ``name#0``, ``name#1``, ...; empty texts are dropped."""
    number = 0
    for text in texts:
        if not isinstance(text, str):
            for document in in_parts(f"{name}#{number}", text):
                yield document
                number += not document.more
        elif text:
            yield Document(f"{name}#{number}", text)
            number += 1


def not_empty(documents: Iterator[Document], message: str) -> Iterator[Document]:
    """Yield documents; raise `UnmaskError` with this message if there are none."""
    first = next(documents, None)
    if first is None:
        raise UnmaskError(message)
    yield first
    del first  # a document may be large
    yield from documents


class CorpusDigest:
    """Counts the documents, bytes and characters of a corpus, and hashes names and texts in order.

    The digest does not depend on how a source divides long texts into documents.
    """

    def __init__(self) -> None:
        self.documents = self.bytes = self.characters = 0
        self._hash = blake2b(digest_size=20)
        self._text_bytes = 0  # of the document that is not complete yet

    @classmethod
    def of(cls, documents: Iterable[Document]) -> CorpusDigest:
        """Read all documents."""
        digest = cls()
        for document in documents:
            digest.add(document)
        return digest

    @classmethod
    def combine(cls, digests: Sequence[CorpusDigest]) -> CorpusDigest:
        """Return the digest of several corpora in this order; that of a single corpus is unchanged."""
        if len(digests) == 1:
            return digests[0]
        combined = cls()
        for digest in digests:
            combined.documents += digest.documents
            combined.bytes += digest.bytes
            combined.characters += digest.characters
            combined._hash.update(digest._hash.digest())
        return combined

    def add(self, document: Document) -> None:
        """Add a document, or the next part of one."""
        text = document.text.encode("utf-8", "surrogatepass")
        self._hash.update(text)
        self._text_bytes += len(text)
        self.bytes += len(text)
        self.characters += len(document.text)
        if not document.more:
            name = document.name.encode("utf-8", "surrogatepass")
            # The sizes come last, so that no two sequences of names and texts hash the same bytes.
            self._hash.update(name + struct.pack(">QQ", len(name), self._text_bytes))
            self._text_bytes = 0
            self.documents += 1

    @property
    def hexdigest(self) -> str:
        """Equal for equal documents."""
        return self._hash.hexdigest()


def hash_fraction(content: bytes) -> float:
    """Return a number in [0, 1) that depends on the content alone."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big") / 2**64
