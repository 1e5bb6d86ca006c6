"""Sudoku by the thousand: a solver of many grids at once, puzzles with one solution, and the symmetries of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

AT_ONCE = 4096
"""Grids that are looked at together; without a bound a search in an emptier grid would fill the memory."""
POPCOUNT = np.array([bin(bits).count("1") for bits in range(1 << 9)], dtype=np.uint8)


def every_digit(box: int) -> np.uint16:
    """The bits of a cell of which nothing is known."""
    return np.uint16((1 << box * box) - 1)


def is_solved(state: Bits) -> Flags:
    """[S] whether one digit is left in every cell, where at least one is."""
    return np.asarray(_at_most_one(state).all(axis=(0, 1)))


def _at_most_one(state: Bits) -> Flags:
    """Whether a cell has one digit or none."""
    return (state & (state - np.uint16(1))) == 0


def propagate(state: Bits, owner: Integers, box: int) -> tuple[Bits, Integers]:
    """What follows without a guess, and the `owner`s [S'] of the grids that have no contradiction yet.

    A digit that stands in a unit is struck from its other cells; a digit with one cell left in a unit stands there, and
    one without any is a contradiction, to which digits that stand twice come as well.
    """
    while state.shape[-1]:
        fixed = np.where(_at_most_one(state), state, np.uint16(0))
        struck = np.where(fixed, state, state & ~_standing(fixed, box))
        possible, alone = _places(struck, box)
        lonely = struck & alone
        new = np.where(lonely, lonely, struck)
        alive = possible & _at_most_one(lonely).all(axis=(0, 1)) & new.all(axis=(0, 1))
        settled = not ((new != state).any(axis=(0, 1)) & alive).any()
        state, owner = (new, owner) if alive.all() else (new[..., alive], owner[alive])
        if settled:
            break
    return state, owner


def solvable(state: Bits, box: int) -> Flags:
    """[S] whether each grid has a solution: many are searched side by side, the latest halves first."""
    found = np.zeros(state.shape[-1], dtype=np.bool_)
    waiting = [(state, np.arange(state.shape[-1]))]
    while waiting:
        state, owner = waiting.pop()
        if len(owner) > AT_ONCE:
            waiting.append((state[..., :-AT_ONCE], owner[:-AT_ONCE]))
            state, owner = state[..., -AT_ONCE:], owner[-AT_ONCE:]
        state, owner = propagate(state, owner, box)
        found[owner[is_solved(state)]] = True
        open_ = ~found[owner]
        if open_.any():
            waiting.append(_halve(state[..., open_], owner[open_]))
    return found


def fewest(state: Bits) -> tuple[Integers, Integers]:
    """[S] row and column of the cell with the fewest digits left, of those with more than one."""
    size = state.shape[0]
    count = POPCOUNT[state]
    cell = np.where(count > 1, count, 99).reshape(size * size, -1).argmin(axis=0)
    return cell // size, cell % size


def _halve(state: Bits, owner: Integers) -> tuple[Bits, Integers]:
    """Every grid twice: with the lowest digit of a cell, and without it."""
    row, column = fewest(state)
    grid = np.arange(len(owner))
    bits = state[row, column, grid]
    lowest = bits & (~bits + np.uint16(1))
    with_it, without = state.copy(), state.copy()
    with_it[row, column, grid] = lowest
    without[row, column, grid] = bits ^ lowest
    return np.concatenate([with_it, without], axis=-1), np.concatenate([owner, owner])


def _units(state: Bits, box: int) -> Iterator[tuple[list[Bits], tuple[int, ...]]]:
    """Rows, columns and boxes: the N cells of each of the N units, [.., S], and the shape that spreads them back."""
    size = box * box
    boxes = state.reshape(box, box, box, box, -1)
    yield [state[:, i] for i in range(size)], (size, 1, -1)
    yield [state[i] for i in range(size)], (1, size, -1)
    yield [boxes[:, i, :, j] for i in range(box) for j in range(box)], (box, 1, box, 1, -1)


def _once_and_twice(cells: list[Bits]) -> tuple[Bits, Bits]:
    """The digits that some cell of a unit has, and those that several have."""
    once, twice = np.zeros_like(cells[0]), np.zeros_like(cells[0])
    for cell in cells:
        twice |= once & cell
        once |= cell
    return once, twice


def _back(unit: Bits, shape: tuple[int, ...], like: Bits, box: int) -> Bits:
    """What is known of units, at each of their cells."""
    full = (box, box, box, box, like.shape[-1]) if len(shape) == 5 else like.shape
    return np.broadcast_to(unit.reshape(shape), full).reshape(like.shape)


def _standing(fixed: Bits, box: int) -> Bits:
    """At each cell the digits that stand in its units."""
    standing = np.zeros_like(fixed)
    for cells, shape in _units(fixed, box):
        standing |= _back(reduce(np.bitwise_or, cells), shape, fixed, box)
    return standing


def _places(state: Bits, box: int) -> tuple[Flags, Bits]:
    """[S] whether every digit has a place in every unit, and at each cell the digits with one place in a unit of it."""
    possible = np.ones(state.shape[-1], dtype=np.bool_)
    alone = np.zeros_like(state)
    for cells, shape in _units(state, box):
        once, twice = _once_and_twice(cells)
        possible &= (once == every_digit(box)).reshape(-1, state.shape[-1]).all(axis=0)
        alone |= _back(once & ~twice, shape, state, box)
    return possible, alone


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
