"""What may be done to a sudoku without changing what it is: digits renamed, lines moved, the grid turned over."""

from __future__ import annotations

import numpy as np

from unmask.data.sudoku.making import Digits, Puzzles
from unmask.data.sudoku.solver import Integers


def moved(puzzles: Puzzles, box: int, count: int, rng: np.random.Generator) -> Puzzles:
    """`count` puzzles, each one of some, under a random symmetry: of 9 by 9 cells there are 9! 6^8 2."""
    chosen = rng.integers(len(puzzles.answers), size=count)
    names = _renamed(box * box, count, rng)
    cells = _cells(box, count, rng)
    return Puzzles(*(_apply(grids[chosen], cells, names) for grids in (puzzles.questions, puzzles.answers)))


def _apply(grids: Digits, cells: Integers, names: Digits) -> Digits:
    return np.take_along_axis(names, np.take_along_axis(grids, cells, axis=1), axis=1)


def _renamed(digits: int, count: int, rng: np.random.Generator) -> Digits:
    """[count, 1 + digits] the new name of each digit; an empty cell stays 0."""
    names = np.zeros((count, digits + 1), dtype=np.uint8)
    names[:, 1:] = 1 + rng.random((count, digits)).argsort(axis=1)
    return names


def _cells(box: int, count: int, rng: np.random.Generator) -> Integers:
    """[count, N * N] the cell that comes to each place."""
    rows, columns = _lines(box, count, rng)[:, :, None], _lines(box, count, rng)[:, None, :]
    turned = rng.random(count)[:, None, None] < 0.5
    size = box * box
    return np.where(turned, columns * size + rows, rows * size + columns).reshape(count, -1)


def _lines(box: int, count: int, rng: np.random.Generator) -> Integers:
    """[count, N] bands in any order, and the lines of each band in any order."""
    bands = rng.random((count, box)).argsort(axis=1)
    within = rng.random((count, box, box)).argsort(axis=2)
    return (bands[:, :, None] * box + within).reshape(count, -1)
