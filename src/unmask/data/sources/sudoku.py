"""Sudoku: a grid with some digits given, dots in the empty cells, and the only way to fill them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from unmask.data.partial import build_once
from unmask.data.place import cache_folder, keeping_in
from unmask.data.sources.puzzle import CHUNK, SEPARATOR, PuzzleSource, Text
from unmask.data.sudoku.making import Puzzles, make_puzzles
from unmask.data.sudoku.symmetry import moved

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
        every = _base(self.box, train + other, self.stay, self.seed, str(cache_folder()))
        chosen = slice(train, None) if held_out else slice(0, train)
        return Puzzles(every.questions[chosen], every.answers[chosen])

    def is_right(self, text: str) -> bool:
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
