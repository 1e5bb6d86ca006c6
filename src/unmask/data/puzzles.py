"""Generated data with known answers: Markov chains, paths through star graphs, and sudoku with its solver."""

from __future__ import annotations

import io
import math
import string
from abc import abstractmethod
from bisect import bisect
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from hashlib import blake2b
from itertools import islice, pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from unmask.data.documents import Document
from unmask.data.sources import Source
from unmask.io import atomic_bytes, build_once, cache_dir

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Text = npt.NDArray[np.uint8]
"""ASCII codes [n, width], one text per row."""
Digits = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.uint16]
"""The candidates of the cells of S grids, [N, N, S]: bit d is set if the digit d + 1 is possible."""

SEPARATOR = "="
CHUNK = 4096
"""Puzzles that are generated together."""
NODE_NAMES = string.ascii_letters + string.digits
EDGE_END, QUESTION = ",", "/"
GIVENS = {2: (4, 8), 3: (24, 36)}
BASES_AT_ONCE = 512
BASES_VERSION = 1
"""Increase it when base puzzles are generated differently."""
GRIDS_AT_ONCE = 4096
"""Grids that are searched together, which bounds the memory of the search."""
POPCOUNT = np.array([bits.bit_count() for bits in range(1 << 9)], dtype=np.uint8)


class MarkovSource(Source):
    """Documents of a stationary Markov chain over the letters of an alphabet.

    sharpness: a transition's weight is u^-sharpness for a uniform u; the larger, the lower the entropy. count, length:
    the number of documents, and of letters in each.
    """

    name: Literal["markov"] = "markov"
    alphabet: str = "abcdefgh"
    sharpness: float = Field(default=2.0, ge=0, le=8)
    count: int = Field(default=1000, ge=1)
    length: int = Field(default=256, ge=1)
    seed: int = 0

    @field_validator("alphabet")
    @classmethod
    def _has_several_letters(cls, alphabet: str) -> str:
        if len(alphabet) < 2 or len(set(alphabet)) < len(alphabet):
            raise ValueError("a chain needs at least two letters, each only once")
        return alphabet

    def documents(self) -> Iterator[Document]:
        """Yield the documents; document i depends on the seed and i alone."""
        start, chances = self.stationary.cumsum().tolist(), self.transitions.cumsum(axis=1).tolist()
        last = len(self.alphabet) - 1
        for number in range(self.count):
            letters, cumulative = [], start
            for u in np.random.default_rng([self.seed, number]).random(self.length).tolist():
                state = min(bisect(cumulative, u), last)
                letters.append(self.alphabet[state])
                cumulative = chances[state]
            yield Document(f"chain-{number}", "".join(letters))

    @cached_property
    def transitions(self) -> Floats:
        """[S, S] the probability of each letter after each."""
        size = len(self.alphabet)
        weight = (1.0 - np.random.default_rng(self.seed).random((size, size))) ** -self.sharpness
        return weight / weight.sum(axis=1, keepdims=True)

    @cached_property
    def stationary(self) -> Floats:
        """[S] the stationary distribution."""
        size = len(self.alphabet)
        balance = np.vstack([self.transitions.T - np.eye(size), np.ones(size)])
        return np.linalg.lstsq(balance, np.eye(size + 1)[-1], rcond=None)[0]

    def bits(self, letters: int) -> float:
        """Return the entropy of a text: that of the first letter, and of each other letter given the one before."""
        start, chance = self.stationary, self.transitions
        first = -float((start * np.log2(start)).sum())
        conditional = -float((start[:, None] * chance * np.log2(chance)).sum())
        return first + (letters - 1) * conditional

    def bits_per_character(self) -> float:
        return self.bits(self.length) / self.length

    def nll_bits(self, text: str) -> float:
        """Return -log2 p of a text under the chain."""
        states = [self.alphabet.index(letter) for letter in text]
        steps = sum(math.log2(self.transitions[a, b]) for a, b in pairwise(states))
        return -math.log2(self.stationary[states[0]]) - steps


class PuzzleSource(Source):
    """Documents ``question=answer`` of one width. No answer is both in training and in validation.

    Puzzle i of a side depends on the options, the seed and i alone. count, validation: the number of puzzles to train
    on, and of held-out ones.
    """

    name: str
    count: int = Field(default=1_000_000, ge=1)
    validation: int = Field(default=10_000, ge=1)
    seed: int = 0

    @abstractmethod
    def draw(self, rng: np.random.Generator, held_out: bool) -> Text:
        """Return `CHUNK` random puzzles as ASCII codes [CHUNK, width]."""

    @abstractmethod
    def is_correct(self, text: str) -> bool:
        """Return whether the answer at the end of a text follows the rules."""

    def documents(self) -> Iterator[Document]:
        for name, held_out, count in (("item", False, self.count), ("held-out", True, self.validation)):
            for number, text in enumerate(islice(self.items(held_out), count)):
                yield Document(f"{name}-{number}", text)

    def held_out(self, name: str) -> bool:
        return name.startswith("held-out")

    def items(self, held_out: bool) -> Iterator[str]:
        """Yield the puzzles of one side, without end."""
        number = 0
        while True:
            chunk = self._chunk(held_out, number)
            width, text = chunk.shape[1], chunk.tobytes().decode("ascii")
            yield from (text[start : start + width] for start in range(0, len(text), width))
            number += 1

    def _chunk(self, held_out: bool, number: int) -> Text:
        rng = np.random.default_rng([self.seed, int(held_out), number])
        chosen: list[Text] = []
        while sum(map(len, chosen)) < CHUNK:
            drawn = self.draw(rng, held_out)
            chosen.append(drawn[_is_reserved(drawn) == held_out])
        return np.concatenate(chosen)[:CHUNK]


def _is_reserved(puzzles: Text) -> Flags:
    """Return [n] whether answers are reserved for validation: one in eight, by a hash of their characters.

    The weights of the hash are random, since the digits of all sudokus have the same plain sum.
    """
    answers = puzzles[:, int((puzzles[0] == ord(SEPARATOR)).argmax()) + 1 :].astype(np.int64)
    weights = np.random.default_rng(0).integers(1 << 31, size=answers.shape[1])
    return (answers @ weights) % 10_007 % 8 == 0


class PathsSource(PuzzleSource):
    """Path-star graphs: ``ab,cd,.../sg=s...g``, with directed edges and node names drawn for every puzzle.

    degree: arms of the star. arm: nodes on the path from the centre to the end of an arm, both included. names: how
    many node names there are, from a to z, A to Z, 0 to 9.
    """

    name: Literal["paths"] = "paths"
    degree: int = Field(default=5, ge=2)
    arm: int = Field(default=5, ge=2)
    names: int = Field(default=50, ge=2, le=len(NODE_NAMES))

    @model_validator(mode="after")
    def _has_enough_names(self) -> PathsSource:
        if self.names < self.nodes:
            raise ValueError(
                f"{self.degree} arms of {self.arm} nodes need {self.nodes} names; there are at most {len(NODE_NAMES)}"
            )
        return self

    @property
    def nodes(self) -> int:
        """The number of nodes of a graph."""
        return 1 + self.degree * (self.arm - 1)

    @property
    def alphabet(self) -> str:
        """All characters of the puzzles."""
        return NODE_NAMES[: self.names] + EDGE_END + QUESTION + SEPARATOR

    def draw(self, rng: np.random.Generator, held_out: bool) -> Text:
        """Draw graphs with random names and shuffled edges; the goal is the end of the first arm."""
        codes = np.frombuffer(NODE_NAMES.encode(), dtype=np.uint8)
        names = codes[rng.random((CHUNK, self.names)).argsort(axis=1)[:, : self.nodes]]
        shuffled = rng.random((CHUNK, self.nodes - 1)).argsort(axis=1)
        # Node 0 is the centre, and nodes 1 ... arm - 1 are the first arm.
        node = np.arange(1, self.nodes)
        parent = np.where(node % (self.arm - 1) == 1 % (self.arm - 1), 0, node - 1)
        edges = np.stack([parent, node], axis=1)[shuffled].reshape(CHUNK, -1)
        pairs = np.take_along_axis(names, edges, axis=1).reshape(CHUNK, -1, 2)
        marks = np.full((CHUNK, self.nodes - 1, 1), ord(EDGE_END), dtype=np.uint8)
        marks[:, -1] = ord(QUESTION)
        listed = np.concatenate([pairs, marks], axis=2).reshape(CHUNK, -1)
        path = names[:, : self.arm]
        separator = np.full((CHUNK, 1), ord(SEPARATOR), dtype=np.uint8)
        return np.concatenate([listed, path[:, [0, -1]], separator, path], axis=1)

    def is_correct(self, text: str) -> bool:
        """Return whether the answer leads from start to goal along edges of the question."""
        question, _, path = text.partition(SEPARATOR)
        listed, _, ends = question.partition(QUESTION)
        edges = set(listed.split(EDGE_END))
        return path[:1] + path[-1:] == ends and all(a + b in edges for a, b in pairwise(path))


# ---- sudoku ----------------------------------------------------------------------------------------------------------


class SudokuSource(PuzzleSource):
    """Sudoku with exactly one solution each: base puzzles, verified by a solver, under random symmetries.

    box: cells along a side of a box, 3 for 9 by 9 cells, 2 for 4 by 4. givens: the fewest and the most digits given in
    a base puzzle; by default 24 to 36 (4 by 4: 4 to 8). bases: base puzzles of the training part; held-out puzzles have
    an eighth as many others.
    """

    name: Literal["sudoku"] = "sudoku"
    box: Literal[2, 3] = 3
    givens: tuple[int, int] | None = None
    bases: int = Field(default=4096, ge=1)

    @model_validator(mode="after")
    def _has_givens_in_order(self) -> SudokuSource:
        least, most = self.givens or GIVENS[self.box]
        if not 0 <= least <= most < self.box**4:
            raise ValueError(f"givens must be the fewest and the most digits, below {self.box**4}")
        return self

    def draw(self, rng: np.random.Generator, held_out: bool) -> Text:
        """Draw base puzzles under random symmetries."""
        puzzles = transform(self.base(held_out), self.box, CHUNK, rng)
        question, answer = (grids + np.uint8(ord("0")) for grids in (puzzles.questions, puzzles.answers))
        question[puzzles.questions == 0] = ord(".")
        separator = np.full((CHUNK, 1), ord(SEPARATOR), dtype=np.uint8)
        return np.concatenate([question, separator, answer], axis=1)

    def base(self, held_out: bool) -> Puzzles:
        """Return the base puzzles of one side, generated once and kept in the cache."""
        count = self.bases + -(-self.bases // 8)
        bases = _base_puzzles(self.box, count, self.givens or GIVENS[self.box], self.seed, cache_dir())
        side = slice(self.bases, None) if held_out else slice(0, self.bases)
        return Puzzles(bases.questions[side], bases.answers[side])

    def is_correct(self, text: str) -> bool:
        """Return whether every row, column and box of the last grid of a text has every digit."""
        size = self.box**2
        digits = {str(digit) for digit in range(1, size + 1)}
        cells = np.array(list(text[-size * size :])).reshape(self.box, self.box, self.box, self.box)
        units = (cells, cells.transpose(2, 3, 0, 1), cells.transpose(0, 2, 1, 3))
        return all(set(unit) == digits for grid in units for unit in grid.reshape(size, size).tolist())


@lru_cache(maxsize=4)
def _base_puzzles(box: int, count: int, givens: tuple[int, int], seed: int, cache: Path) -> Puzzles:
    """Generate base puzzles in blocks with their own seeds, on all cores, or read them from the cache."""

    def write(folder: Path) -> None:
        sizes = [min(BASES_AT_ONCE, count - start) for start in range(0, count, BASES_AT_ONCE)]
        with ThreadPoolExecutor() as pool:
            blocks = list(pool.map(lambda n: make_puzzles(box, sizes[n], givens, [seed, n]), range(len(sizes))))
        content = io.BytesIO()
        np.save(content, np.concatenate([np.stack([block.questions, block.answers]) for block in blocks], axis=1))
        atomic_bytes(folder / "puzzles.npy", content.getvalue())

    key = blake2b(repr((BASES_VERSION, box, count, givens, seed)).encode(), digest_size=20).hexdigest()
    folder = cache / "sudoku" / key
    build_once(folder, lambda folder: (folder / "puzzles.npy").is_file(), write)
    return Puzzles(*np.load(folder / "puzzles.npy"))


# ---- making and solving grids ----------------------------------------------------------------------------------------


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
