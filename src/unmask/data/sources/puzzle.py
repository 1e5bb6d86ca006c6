"""Items with one right answer that are made here: what every such source is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
from pydantic import Field

from unmask.data.sources.base import Document, Source

Text = npt.NDArray[np.uint8]

SEPARATOR = "="
CHUNK = 4096
"""Items that are made together."""
RESERVED = 8
"""Of so many answers one is kept for validation."""
PRIME = 10_007
TRAIN, HELD_OUT = "item", "held-out"


class PuzzleSource(Source):
    """Documents ``question=answer`` of one width. An answer that a held-out item has, no training item has.

    Item i of a side depends on the options, the seed and i alone.
    """

    name: str
    count: int = Field(default=1_000_000, ge=1)
    """Items to train on."""
    validation: int = Field(default=10_000, ge=1)
    """Held-out items."""
    seed: int = 0

    @abstractmethod
    def draw(self, rng: np.random.Generator, held_out: bool) -> Text:
        """[CHUNK, width] items of one side, as ASCII."""

    @abstractmethod
    def is_right(self, text: str) -> bool:
        """Whether the answer at the end of a row breaks no rule, be it the expected one or not."""

    def documents(self) -> Iterator[Document]:
        """All training items, then all held-out ones."""
        train = enumerate(islice(self.items(held_out=False), self.count))
        held_out = enumerate(islice(self.items(held_out=True), self.validation))
        return chain(
            (Document(f"{TRAIN}-{number}", text) for number, text in train),
            (Document(f"{HELD_OUT}-{number}", text) for number, text in held_out),
        )

    def held_out(self, name: str) -> bool:
        """Its name says it."""
        return name.startswith(HELD_OUT)

    def items(self, held_out: bool) -> Iterator[str]:
        """The items of one side, without end."""
        number = 0
        while True:
            chunk = self._chunk(held_out, number)
            width, text = chunk.shape[1], chunk.tobytes().decode("ascii")
            yield from (text[start : start + width] for start in range(0, len(text), width))
            number += 1

    def _chunk(self, held_out: bool, number: int) -> Text:
        """The first `CHUNK` drawn items whose answers are on the right side."""
        rng = np.random.default_rng([self.seed, int(held_out), number])
        chosen: list[Text] = []
        while sum(map(len, chosen)) < CHUNK:
            drawn = self.draw(rng, held_out)
            chosen.append(drawn[_is_reserved(drawn) == held_out])
        return np.concatenate(chosen)[:CHUNK]


def _is_reserved(items: Text) -> npt.NDArray[np.bool_]:
    """[n] whether the answers of items [n, width] are kept for validation, by a hash of their characters.

    Its weights are drawn: rows and columns of a sudoku have all the same sum, so that simple ones tell nothing.
    """
    answers = items[:, int((items[0] == ord(SEPARATOR)).argmax()) + 1 :].astype(np.int64)
    weights = np.random.default_rng(0).integers(1 << 31, size=answers.shape[1])
    return (answers @ weights) % PRIME % RESERVED == 0
