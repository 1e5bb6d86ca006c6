"""Sudoku: a grid with some digits given, dots in the empty cells, and the only way to fill them."""

from __future__ import annotations

import math
import string
from abc import abstractmethod
from bisect import bisect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from unmask.data.build_once import build_once, cache_dir, keeping_in
from unmask.data.sources.base import Document, Source
from unmask.data.sudoku import Puzzles, make_puzzles, moved

Floats = npt.NDArray[np.float64]


class MarkovSource(Source):
    """Documents of a chain over the letters of an alphabet.

    Each begins by the stationary law, so that any stretch of one has the law of any other as long.

    A transition's weight is u^-sharpness for a uniform u: the sharper, the more a letter tells about the next.
    """

    name: Literal["markov"] = "markov"
    alphabet: str = "abcdefgh"
    sharpness: float = Field(default=2.0, ge=0, le=8)
    count: int = Field(default=1000, ge=1)
    """Documents."""
    length: int = Field(default=256, ge=1)
    """Letters of a document."""
    seed: int = 0

    @field_validator("alphabet")
    @classmethod
    def _has_several_letters(cls, alphabet: str) -> str:
        if len(alphabet) < 2 or len(set(alphabet)) < len(alphabet):
            raise ValueError("a chain needs at least two letters, each only once")
        return alphabet

    def documents(self) -> Iterator[Document]:
        """Document i depends on the seed and on i alone."""
        for number in range(self.count):
            yield Document(f"chain-{number}", "".join(self.alphabet[state] for state in self._walk(number)))

    @cached_property
    def transitions(self) -> Floats:
        """[S, S] the chance of each letter after each."""
        size = len(self.alphabet)
        weight = (1.0 - np.random.default_rng(self.seed).random((size, size))) ** -self.sharpness
        return weight / weight.sum(axis=1, keepdims=True)

    @cached_property
    def stationary(self) -> Floats:
        """[S] the share of each letter in the long run."""
        size = len(self.alphabet)
        balance = np.vstack([self.transitions.T - np.eye(size), np.ones(size)])
        return np.linalg.lstsq(balance, np.eye(size + 1)[-1], rcond=None)[0]

    def bits(self, letters: int) -> float:
        """Entropy of a text of so many letters: that of the first, and for each other that given the one before."""
        start, chance = self.stationary, self.transitions
        first = -float((start * np.log2(start)).sum())
        next_one = -float((start[:, None] * chance * np.log2(chance)).sum())
        return first + (letters - 1) * next_one

    def bits_per_character(self) -> float:
        """Entropy of a document over its letters."""
        return self.bits(self.length) / self.length

    def nll_bits(self, text: str) -> float:
        """-log2 p of a text under the chain."""
        states = [self.alphabet.index(letter) for letter in text]
        steps = sum(math.log2(self.transitions[a, b]) for a, b in pairwise(states))
        return -math.log2(self.stationary[states[0]]) - steps

    def _walk(self, number: int) -> list[int]:
        """The states of one document, by inverting cumulative chances."""
        draws = np.random.default_rng([self.seed, number]).random(self.length).tolist()
        states = [self._drawn(self.stationary, draws[0])]
        for u in draws[1:]:
            states.append(self._drawn(self.transitions[states[-1]], u))
        return states

    @staticmethod
    def _drawn(chance: Floats, u: float) -> int:
        """The state whose stretch of (0, 1) holds u."""
        return min(bisect(chance.cumsum().tolist(), u), len(chance) - 1)


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
    def is_correct(self, text: str) -> bool:
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

    def is_correct(self, text: str) -> bool:
        """Whether the answer leads from start to goal along edges of its question."""
        question, _, way = text.partition(SEPARATOR)
        listed, _, ends = question.partition(ASK)
        edges = set(listed.split(EDGE))
        return way[:1] + way[-1:] == ends and all(a + b in edges for a, b in pairwise(way))

    def _edges(self) -> Integers:
        """[nodes - 1, 2] the edges of the star; node 0 is its centre, 1 ... arm - 1 the first arm."""
        node = np.arange(1, self.nodes)
        return np.stack([np.where(node % (self.arm - 1) == 1 % (self.arm - 1), 0, node - 1), node], axis=1)


GIVENS = {2: (4, 8), 3: (24, 36)}
BLOCK = 512
"""Base puzzles that are made together."""
VERSION = 1
"""Of how base puzzles are made."""


class SudokuSource(PuzzleSource):
    """Sudoku with exactly one solution each: base puzzles, proven by a solver, under random symmetries.

    Held-out items come from base puzzles of their own, an eighth as many again.
    """

    name: Literal["sudoku"] = "sudoku"
    box: Literal[2, 3] = 3
    """Cells along a side of a box: 3 for 9 by 9 cells, 2 for 4 by 4."""
    givens: tuple[int, int] | None = None
    """The fewest and the most digits that stay when a base puzzle is dug out: 24 to 36 (4 by 4: 4 to 8) unless told."""
    bases: int = Field(default=4096, ge=1)
    """Base puzzles of the training items."""

    @model_validator(mode="after")
    def _has_givens_in_order(self) -> SudokuSource:
        least, most = self.stay
        if not 0 <= least <= most < self.box**4:
            raise ValueError(f"givens go from the fewest to the most, which is below {self.box**4}")
        return self

    @property
    def stay(self) -> tuple[int, int]:
        """The fewest and the most digits that are asked to stay."""
        return GIVENS[self.box] if self.givens is None else self.givens

    def draw(self, rng: np.random.Generator, held_out: bool) -> Text:
        """Base puzzles of one side, moved."""
        return _written(moved(self.base(held_out), self.box, CHUNK, rng))

    def base(self, held_out: bool) -> Puzzles:
        """The base puzzles of one side, made once and kept in the cache."""
        train, other = self.bases, -(-self.bases // 8)
        every = _base(self.box, train + other, self.stay, self.seed, str(cache_dir()))
        chosen = slice(train, None) if held_out else slice(0, train)
        return Puzzles(every.questions[chosen], every.answers[chosen])

    def is_correct(self, text: str) -> bool:
        """Whether every row, column and box of the last grid of a text has every digit."""
        size = self.box**2
        digits = {str(digit) for digit in range(1, size + 1)}
        cells = np.array(list(text[-size * size :])).reshape(self.box, self.box, self.box, self.box)
        units = (cells, cells.transpose(2, 3, 0, 1), cells.transpose(0, 2, 1, 3))
        return all(set(unit) == digits for turned in units for unit in turned.reshape(size, size).tolist())


def _written(puzzles: Puzzles) -> Text:
    """[n, width] puzzles as ASCII."""
    question, answer = (grids + np.uint8(ord("0")) for grids in (puzzles.questions, puzzles.answers))
    question[puzzles.questions == 0] = ord(".")
    between = np.full((len(answer), 1), ord(SEPARATOR), dtype=np.uint8)
    return np.concatenate([question, between, answer], axis=1)


@lru_cache(maxsize=4)
def _base(box: int, count: int, givens: tuple[int, int], seed: int, root: str) -> Puzzles:
    key = blake2b(repr((VERSION, box, count, givens, seed)).encode(), digest_size=20).hexdigest()
    place = Path(root) / "sudoku" / key
    with keeping_in(place.parent):
        build_once(place, _is_whole, lambda folder: _write(folder, _make(box, count, givens, seed)))
        questions, answers = np.load(place / "puzzles.npy")
    return Puzzles(questions, answers)


def _make(box: int, count: int, givens: tuple[int, int], seed: int) -> Puzzles:
    """In blocks of their own seeds, on all cores: numpy lets other threads run while it computes."""
    sizes = [min(BLOCK, count - start) for start in range(0, count, BLOCK)]
    with ThreadPoolExecutor() as pool:
        blocks = list(pool.map(lambda n: make_puzzles(box, sizes[n], givens, [seed, n]), range(len(sizes))))
    return Puzzles(*(np.concatenate([getattr(b, name) for b in blocks]) for name in ("questions", "answers")))


def _is_whole(folder: Path) -> bool:
    return (folder / "puzzles.npy").is_file()


def _write(folder: Path, puzzles: Puzzles) -> None:
    np.save(folder / "puzzles.npy", np.stack([puzzles.questions, puzzles.answers]))
