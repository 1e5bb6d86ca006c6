"""What every source is and what it yields. Nobody here opens a file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
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

    lasting: ClassVar[bool] = True
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

    def left_out(self) -> dict[str, int]:
        """How many files of each suffix lie in the source's folders and are not read."""
        return {}
