"""Many sudoku at once: candidates as bits, singles propagated, search by halving.

A grid of boxes of b by b cells has N = b * b digits, rows and columns. States are arrays [N, N, S] of S grids, in each
cell the digits that are still possible, digit d as bit d - 1. The grids come last, so that every operation runs along
all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
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
