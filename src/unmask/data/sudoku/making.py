"""Base puzzles: random grids, and as many of their digits dug out as leave one solution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unmask.data.sudoku.solver import Bits, Flags, Integers, every_digit, fewest, is_solved, propagate, solvable

Digits = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Puzzles:
    """`questions` [n, N * N] with 0 in the empty cells, and their only `answers` [n, N * N]."""

    questions: Digits
    answers: Digits


def make_puzzles(box: int, count: int, givens: tuple[int, int], seed: int | Sequence[int]) -> Puzzles:
    """Puzzles of which each has exactly one solution.

    The number of digits that stay is drawn for each puzzle, from the first of `givens` to the second; one in which
    every digit is needed before that keeps more.
    """
    rng = np.random.default_rng(seed)
    grids = _random_grids(box, count, rng)
    questions = _dig(grids, rng.integers(givens[0], givens[1] + 1, size=count), box, rng)
    return Puzzles(_digits(questions), _digits(grids))


def _random_grids(box: int, count: int, rng: np.random.Generator) -> Bits:
    """[N, N, count] complete grids; a guess that leads nowhere begins anew."""
    done: list[Bits] = []
    while (missing := count - sum(part.shape[-1] for part in done)) > 0:
        state = np.full((box * box, box * box, missing), every_digit(box))
        while state.shape[-1]:
            state, _ = propagate(state, np.arange(state.shape[-1]), box)
            solved = is_solved(state)
            done.append(state[..., solved])
            state = state[..., ~solved]
            _guess(state, rng)
    return np.concatenate(done, axis=-1)


def _guess(state: Bits, rng: np.random.Generator) -> None:
    """Write one of the digits that are left into a cell with the fewest of them, in place."""
    row, column = fewest(state)
    grid = np.arange(state.shape[-1])
    digit = np.arange(state.shape[0], dtype=np.uint16)[:, None]
    left = (state[row, column, grid] >> digit) & 1
    chosen = np.where(left, rng.random(left.shape), -1.0).argmax(axis=0).astype(np.uint16)
    state[row, column, grid] = np.uint16(1) << chosen


def _dig(grids: Bits, wanted: Integers, box: int, rng: np.random.Generator) -> Bits:
    """Grids with 0 where a digit was taken out: in random order, each that the others do without."""
    puzzles, size, count = grids.copy(), len(grids), grids.shape[-1]
    order = rng.random((size * size, count)).argsort(axis=0)
    left = np.full(count, size * size)
    for cell in order:
        (trying,) = (left > wanted).nonzero()
        place = cell[trying] // size, cell[trying] % size, trying
        taken = trying[~_has_another(puzzles, grids, place, box)]
        puzzles[cell[taken] // size, cell[taken] % size, taken] = 0
        left[taken] -= 1
    return puzzles


def _has_another(puzzles: Bits, grids: Bits, place: tuple[Integers, Integers, Integers], box: int) -> Flags:
    """Whether each puzzle has a solution with another digit at a place than its grid has there."""
    row, column, number = place
    state = np.where(puzzles, puzzles, every_digit(box))[..., number]
    state[row, column, np.arange(len(number))] = every_digit(box) & ~grids[place]
    return solvable(state, box)


def _digits(state: Bits) -> Digits:
    """[n, N * N] the digit of each cell, 0 where there is none."""
    digit = np.frexp(state.astype(np.float32))[1]
    return np.ascontiguousarray(digit.reshape(-1, state.shape[-1]).T.astype(np.uint8))
