"""Sources of text: documents, the base class of sources, and a digest that identifies a corpus.

The sources are in `text` (files and folders in many formats, standard input), `huggingface`, `parallel` (pairs),
`fasta`, `genome` and `stdlib`; those of made-up puzzles are in `unmask.data.puzzles`.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

from unmask.registry import Component

HUB_PREFIX = "hf:"
MAX_CHARACTERS = 1 << 24
"""A text that is read in parts becomes documents of about this size."""


@dataclass(slots=True)  # not frozen: that makes creation four times slower, and a corpus has millions of documents
class Document:
    """A named text, or a part of one. more: the text continues in the next document, which has the same name."""

    name: str
    text: str
    more: bool = False


class Source(Component):
    """Base class of the sources. A source yields the same documents in the same order each time it is read."""

    persistent: ClassVar[bool] = True
    """Whether a later process can read the same documents again."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield all documents from the start, in a fixed order."""

    def check(self) -> None:
        """Raise `UnmaskError` if something is wrong that is found quickly, such as a missing file or field."""

    def held_out(self, name: str) -> bool | None:
        """Return whether a document is for validation; None leaves the choice to the split."""
        return None

    def split_key(self, name: str) -> str:
        """Return the key of a document; documents with the same key go to the same side of the split."""
        return name

    def bits_per_character(self) -> float | None:
        """Return the entropy of the text, a lower bound for every model, where it is known."""
        return None

    def skipped_files(self) -> dict[str, int]:
        """Return the number of files of each suffix in the source's folders that are not read."""
        return {}


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


def is_saved_dataset(folder: Path) -> bool:
    """Return whether a folder was written by a dataset's ``save_to_disk``."""
    single = all((folder / name).is_file() for name in ("dataset_info.json", "state.json"))
    return single or (folder / "dataset_dict.json").is_file()


def is_pattern(path: str | Path) -> bool:
    """Return whether a path has a wildcard."""
    return any(wildcard in str(path) for wildcard in "*?[")


def source_spec(argument: str) -> dict[str, Any]:
    """Return the recipe's form of the source for ``-``, ``hf:NAME``, a file, a folder or a pattern."""
    if argument == "-":
        return {"name": "stdin"}
    if argument.startswith(HUB_PREFIX):
        return {"name": "huggingface", "path": argument.removeprefix(HUB_PREFIX)}
    if is_saved_dataset(Path(argument).expanduser()):
        return {"name": "huggingface", "path": argument}
    return {"name": "text", "paths": [argument]}
