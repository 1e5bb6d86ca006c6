"""Sudoku: a solver of many grids at once, puzzles with one solution, and their symmetries.

A grid of candidates is uint16 [N, N, S], for S grids of N = box^2 digits: bit d is set where digit d + 1 is possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Digits = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]

GRIDS_AT_ONCE = 4096
"""Grids that are searched together, which bounds the memory of the search."""
POPCOUNT = np.array([bin(bits).count("1") for bits in range(1 << 9)], dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Puzzles:
    """Questions [n, N * N], with 0 in empty cells, and their only answers [n, N * N]."""

    questions: Digits
    answers: Digits


def make_puzzles(box: int, count: int, givens: tuple[int, int], seed: int | Sequence[int]) -> Puzzles:
    """Make puzzles with exactly one solution each.

    The number of digits given is drawn for each puzzle, from givens[0] to givens[1]; a puzzle in which every digit is
    needed before that keeps more.
    """
    rng = np.random.default_rng(seed)
    grids = _random_grids(box, count, rng)
    questions = _remove_digits(grids, rng.integers(givens[0], givens[1] + 1, size=count), box, rng)
    return Puzzles(_to_digits(questions), _to_digits(grids))


def transform(puzzles: Puzzles, box: int, count: int, rng: np.random.Generator) -> Puzzles:
    """Draw `count` puzzles, each under a random symmetry: digits renamed, bands and lines permuted, grid transposed."""
    chosen = rng.integers(len(puzzles.answers), size=count)
    digits = box * box
    names = np.zeros((count, digits + 1), dtype=np.uint8)  # an empty cell stays 0
    names[:, 1:] = 1 + rng.random((count, digits)).argsort(axis=1)
    cells = random_cell_order(box, count, rng)

    def moved(grids: Digits) -> Digits:
        return np.take_along_axis(names, np.take_along_axis(grids[chosen], cells, axis=1), axis=1)

    return Puzzles(moved(puzzles.questions), moved(puzzles.answers))


def random_cell_order(box: int, count: int, rng: np.random.Generator) -> Integers:
    """Return [count, N * N] the cell that moves to each place."""
    rows, columns = _random_lines(box, count, rng)[:, :, None], _random_lines(box, count, rng)[:, None, :]
    transposed = rng.random(count)[:, None, None] < 0.5
    size = box * box
    return np.where(transposed, columns * size + rows, rows * size + columns).reshape(count, -1)


def _random_lines(box: int, count: int, rng: np.random.Generator) -> Integers:
    """Return [count, N] lines with the bands, and the lines of each band, in random order."""
    bands = rng.random((count, box)).argsort(axis=1)
    within = rng.random((count, box, box)).argsort(axis=2)
    return (bands[:, :, None] * box + within).reshape(count, -1)


def _random_grids(box: int, count: int, rng: np.random.Generator) -> Bits:
    """Return [N, N, count] complete grids, filled by random guesses; a grid with a contradiction is started anew."""
    done: list[Bits] = []
    while (missing := count - sum(part.shape[-1] for part in done)) > 0:
        state = np.full((box * box, box * box, missing), all_digits(box))
        while state.shape[-1]:
            state, _ = propagate(state, np.arange(state.shape[-1]), box)
            solved = is_solved(state)
            done.append(state[..., solved])
            state = state[..., ~solved]
            row, column = _fewest_candidates(state)
            grid = np.arange(state.shape[-1])
            digit = np.arange(state.shape[0], dtype=np.uint16)[:, None]
            possible = (state[row, column, grid] >> digit) & 1
            chosen = np.where(possible, rng.random(possible.shape), -1.0).argmax(axis=0).astype(np.uint16)
            state[row, column, grid] = np.uint16(1) << chosen
    return np.concatenate(done, axis=-1)


def _remove_digits(grids: Bits, givens: Integers, box: int, rng: np.random.Generator) -> Bits:
    """Remove digits in random order while the solution stays unique, down to `givens` [count]; 0 is an empty cell."""
    puzzles, size, count = grids.copy(), len(grids), grids.shape[-1]
    order = rng.random((size * size, count)).argsort(axis=0)
    left = np.full(count, size * size)
    for cell in order:
        (trying,) = (left > givens).nonzero()
        row, column = cell[trying] // size, cell[trying] % size
        # The digit may go if no solution has another digit in its cell.
        state = np.where(puzzles, puzzles, all_digits(box))[..., trying]
        state[row, column, np.arange(len(trying))] = all_digits(box) & ~grids[row, column, trying]
        removed = trying[~is_solvable(state, box)]
        puzzles[cell[removed] // size, cell[removed] % size, removed] = 0
        left[removed] -= 1
    return puzzles


def _to_digits(state: Bits) -> Digits:
    """Return [n, N * N] the digit of each cell, 0 where there is none."""
    digit = np.frexp(state.astype(np.float32))[1]
    return np.ascontiguousarray(digit.reshape(-1, state.shape[-1]).T.astype(np.uint8))


def all_digits(box: int) -> np.uint16:
    """Return the bits of an empty cell."""
    return np.uint16((1 << box * box) - 1)


def is_solved(state: Bits) -> Flags:
    """Return [S] whether every cell of a grid without contradiction has one digit."""
    return np.asarray(_at_most_one(state).all(axis=(0, 1)))


def is_solvable(state: Bits, box: int) -> Flags:
    """Return [S] whether each grid has a solution, by depth-first search of many grids at once."""
    found = np.zeros(state.shape[-1], dtype=np.bool_)
    waiting = [(state, np.arange(state.shape[-1]))]
    while waiting:
        state, owner = waiting.pop()
        if len(owner) > GRIDS_AT_ONCE:
            waiting.append((state[..., :-GRIDS_AT_ONCE], owner[:-GRIDS_AT_ONCE]))
            state, owner = state[..., -GRIDS_AT_ONCE:], owner[-GRIDS_AT_ONCE:]
        state, owner = propagate(state, owner, box)
        found[owner[is_solved(state)]] = True
        unsolved = ~found[owner]
        if unsolved.any():
            waiting.append(_branch(state[..., unsolved], owner[unsolved]))
    return found


def propagate(state: Bits, owner: Integers, box: int) -> tuple[Bits, Integers]:
    """Apply the rules until nothing changes; drop grids with a contradiction, and their `owner` [S].

    A digit placed in a unit is removed from its other cells. A digit with one possible cell in a unit is placed there;
    one without a cell is a contradiction.
    """
    while state.shape[-1]:
        fixed = np.where(_at_most_one(state), state, np.uint16(0))
        placed = np.zeros_like(fixed)
        for cells, shape in _units(fixed, box):
            placed |= _broadcast(reduce(np.bitwise_or, cells), shape, fixed, box)
        reduced = np.where(fixed, state, state & ~placed)
        possible = np.ones(state.shape[-1], dtype=np.bool_)
        single = np.zeros_like(state)
        for cells, shape in _units(reduced, box):
            once, twice = np.zeros_like(cells[0]), np.zeros_like(cells[0])
            for cell in cells:
                twice |= once & cell
                once |= cell
            possible &= (once == all_digits(box)).reshape(-1, state.shape[-1]).all(axis=0)
            single |= _broadcast(once & ~twice, shape, state, box)
        hidden = reduced & single
        new = np.where(hidden, hidden, reduced)
        alive = possible & _at_most_one(hidden).all(axis=(0, 1)) & new.all(axis=(0, 1))
        settled = not ((new != state).any(axis=(0, 1)) & alive).any()
        state, owner = (new, owner) if alive.all() else (new[..., alive], owner[alive])
        if settled:
            break
    return state, owner


def _at_most_one(state: Bits) -> Flags:
    return (state & (state - np.uint16(1))) == 0


def _fewest_candidates(state: Bits) -> tuple[Integers, Integers]:
    """Return [S] row and column of the cell with the fewest candidates, of those with more than one."""
    size = state.shape[0]
    count = POPCOUNT[state]
    cell = np.where(count > 1, count, 99).reshape(size * size, -1).argmin(axis=0)
    return cell // size, cell % size


def _branch(state: Bits, owner: Integers) -> tuple[Bits, Integers]:
    """Return every grid twice: with the lowest candidate of a cell, and without it."""
    row, column = _fewest_candidates(state)
    grid = np.arange(len(owner))
    bits = state[row, column, grid]
    lowest = bits & (~bits + np.uint16(1))
    with_lowest, without = state.copy(), state.copy()
    with_lowest[row, column, grid] = lowest
    without[row, column, grid] = bits ^ lowest
    return np.concatenate([with_lowest, without], axis=-1), np.concatenate([owner, owner])


def _units(state: Bits, box: int) -> Iterator[tuple[list[Bits], tuple[int, ...]]]:
    """Yield rows, columns and boxes: the N cells of each of the N units, [.., S], and their shape to broadcast."""
    size = box * box
    boxes = state.reshape(box, box, box, box, -1)
    yield [state[:, i] for i in range(size)], (size, 1, -1)
    yield [state[i] for i in range(size)], (1, size, -1)
    yield [boxes[:, i, :, j] for i in range(box) for j in range(box)], (box, 1, box, 1, -1)


def _broadcast(unit: Bits, shape: tuple[int, ...], like: Bits, box: int) -> Bits:
    full = (box, box, box, box, like.shape[-1]) if len(shape) == 5 else like.shape
    return np.broadcast_to(unit.reshape(shape), full).reshape(like.shape)
