"""Sudoku: one solution each, by another solver, and symmetries that keep it."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from unmask.data.puzzles import SudokuSource, make_puzzles, random_cell_order, transform


def solutions(question: str, box: int) -> list[str]:
    """Return up to two solutions, by trying digits in the cell with the fewest."""
    size = box * box

    def shares_a_unit(a: int, b: int) -> bool:
        same_box = (a // size // box, a % size // box) == (b // size // box, b % size // box)
        return a != b and (a // size == b // size or a % size == b % size or same_box)

    peers = [[b for b in range(size * size) if shares_a_unit(a, b)] for a in range(size * size)]

    def search(cells: list[str]) -> list[str]:
        digits = set("123456789"[:size])
        free = {i: digits - {cells[j] for j in peers[i]} for i, cell in enumerate(cells) if cell == "."}
        if not free:
            return ["".join(cells)]
        place = min(free, key=lambda i: len(free[i]))
        found: list[str] = []
        for digit in sorted(free[place]):
            found += search([*cells[:place], digit, *cells[place + 1 :]])
            if len(found) > 1:
                break
        return found[:2]

    return search(list(question))


def as_text(grid: np.ndarray) -> str:
    return "".join(map(str, grid)).replace("0", ".")


@pytest.mark.parametrize(
    ("source", "number"), [(SudokuSource(box=2, bases=64, seed=5), 40), (SudokuSource(bases=24, givens=(26, 32)), 12)]
)
def test_every_puzzle_has_one_solution(source: SudokuSource, number: int) -> None:
    for held_out in (False, True):
        for item in islice(source.items(held_out), number):
            question, answer = item.split("=")
            assert solutions(question, source.box) == [answer]
            assert source.is_correct(item)


def test_the_number_of_givens() -> None:
    puzzles = make_puzzles(3, 40, (30, 33), 1)
    shown = puzzles.questions > 0
    givens = shown.sum(axis=1)
    assert (givens.min() >= 30, givens.max() <= 33, len(set(givens.tolist())) > 1) == (True, True, True)
    assert (puzzles.questions[shown] == puzzles.answers[shown]).all()


def test_every_digit_of_a_minimal_puzzle_is_needed() -> None:
    puzzles = make_puzzles(2, 12, (0, 0), 2)
    for question, answer in zip(puzzles.questions, puzzles.answers, strict=True):
        text = as_text(question)
        assert solutions(text, 2) == [as_text(answer)]
        for place in np.flatnonzero(question):
            assert len(solutions(text[:place] + "." + text[place + 1 :], 2)) == 2


def test_a_symmetry_moves_question_and_answer_alike() -> None:
    base = make_puzzles(2, 3, (4, 8), 0)
    many = transform(base, 2, 500, np.random.default_rng(0))
    assert len({answer.tobytes() for answer in many.answers}) > 100
    shown = many.questions > 0
    assert (many.questions[shown] == many.answers[shown]).all()
    assert set((shown.sum(axis=1)).tolist()) == set((base.questions > 0).sum(axis=1).tolist())
    for question, answer in islice(zip(many.questions, many.answers, strict=True), 30):
        assert solutions(as_text(question), 2) == [as_text(answer)]


def test_symmetries_transpose_grids_and_keep_bands_together() -> None:
    cells = random_cell_order(3, 200, np.random.default_rng(1)).reshape(200, 9, 9)
    rows, columns = cells // 9, cells % 9
    upright = (rows == rows[:, :, :1]).all(axis=(1, 2))
    transposed = (columns == columns[:, :, :1]).all(axis=(1, 2))
    assert (upright ^ transposed).all()
    assert 60 < upright.sum() < 140
    band = np.where(upright[:, None], rows[:, :, 0], columns[:, :, 0]) // 3
    assert (band.reshape(200, 3, 3) == band.reshape(200, 3, 3)[:, :, :1]).all()
