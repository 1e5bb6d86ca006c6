"""Paths through a star: edges in any order, a start in the middle, a goal at the end of an arm, and the way there.

Read from the start, the first step is a guess among all arms unless the whole way is known; read from the goal, every
step is the only edge that leads there.
"""

from __future__ import annotations

import string
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from unmask.data.sources.puzzle import CHUNK, SEPARATOR, PuzzleSource, Text

NAMES = string.ascii_letters + string.digits
EDGE, ASK = ",", "/"

Integers = npt.NDArray[np.int64]


class PathsSource(PuzzleSource):
    """Path-star graphs: ``ab,cd,.../sg=s...g``, edges pointing outwards, all names drawn anew for every item."""

    name: Literal["paths"] = "paths"
    degree: int = Field(default=5, ge=2)
    """Arms of the star."""
    arm: int = Field(default=5, ge=2)
    """Nodes on the way from the centre to the end of an arm, both counted."""
    names: int = Field(default=50, ge=2, le=len(NAMES))
    """Names that nodes may have: so many of a to z, A to Z, 0 to 9."""

    @model_validator(mode="after")
    def _has_names_enough(self) -> PathsSource:
        if self.names < self.nodes:
            raise ValueError(
                f"{self.degree} arms of {self.arm} nodes need {self.nodes} names; the most are {len(NAMES)}"
            )
        return self

    @property
    def nodes(self) -> int:
        """Nodes of a graph."""
        return 1 + self.degree * (self.arm - 1)

    @property
    def alphabet(self) -> str:
        """All characters of the items."""
        return NAMES[: self.names] + EDGE + ASK + SEPARATOR

    def draw(self, rng: np.random.Generator, held_out: bool) -> Text:
        """Graphs of random names; the goal is the end of the first arm, which edges in random order do not tell."""
        codes = np.frombuffer(NAMES.encode(), dtype=np.uint8)
        names = codes[rng.random((CHUNK, self.names)).argsort(axis=1)[:, : self.nodes]]
        shuffled = rng.random((CHUNK, self.nodes - 1)).argsort(axis=1)
        edges = self._edges()[shuffled].reshape(CHUNK, -1)
        pairs = np.take_along_axis(names, edges, axis=1).reshape(CHUNK, -1, 2)
        marks = np.full((CHUNK, self.nodes - 1, 1), ord(EDGE), dtype=np.uint8)
        marks[:, -1] = ord(ASK)
        listed = np.concatenate([pairs, marks], axis=2).reshape(CHUNK, -1)
        way = names[:, : self.arm]
        between = np.full((CHUNK, 1), ord(SEPARATOR), dtype=np.uint8)
        return np.concatenate([listed, way[:, [0, -1]], between, way], axis=1)

    def is_right(self, text: str) -> bool:
        """Whether the answer leads from start to goal along edges of its question."""
        question, _, way = text.partition(SEPARATOR)
        listed, _, ends = question.partition(ASK)
        edges = set(listed.split(EDGE))
        return way[:1] + way[-1:] == ends and all(a + b in edges for a, b in pairwise(way))

    def _edges(self) -> Integers:
        """[nodes - 1, 2] the edges of the star; node 0 is its centre, 1 ... arm - 1 the first arm."""
        node = np.arange(1, self.nodes)
        return np.stack([np.where(node % (self.arm - 1) == 1 % (self.arm - 1), 0, node - 1), node], axis=1)
