"""Sudoku: one solution each, proven by another solver; symmetries that keep it; items that are where they belong."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from unmask import registry
from unmask.data import sudoku as solver
from unmask.data.puzzles import CHUNK, SudokuSource
from unmask.data.sudoku import every_digit, make_puzzles, moved, solvable
from unmask.errors import UnmaskError

SMALL = SudokuSource(box=2, bases=64, count=300, validation=50, seed=5)
LARGE = SudokuSource(bases=24, givens=(26, 32), count=20, validation=20)


def peers(size: int, box: int) -> list[set[int]]:
    def unit(a: int, b: int) -> bool:
        same_box = (a // size // box, a % size // box) == (b // size // box, b % size // box)
        return a != b and (a // size == b // size or a % size == b % size or same_box)

    return [{b for b in range(size * size) if unit(a, b)} for a in range(size * size)]


def solutions(question: str, box: int) -> list[str]:
    """All of them up to two, by trying digits in the cell with the fewest; as plain as can be."""
    size = box * box
    around = peers(size, box)

    def search(cells: list[str]) -> list[str]:
        digits = set("123456789"[:size])
        free = {i: digits - {cells[j] for j in around[i]} for i, cell in enumerate(cells) if cell == "."}
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


@pytest.mark.parametrize(("source", "number"), [(SMALL, 40), (LARGE, 12)])
def test_every_item_has_the_one_solution_that_it_shows(source, number):
    for held_out in (False, True):
        for item in islice(source.items(held_out), number):
            question, answer = item.split("=")
            assert solutions(question, source.box) == [answer]
            assert source.is_correct(answer)
            assert source.is_correct(item)


def test_as_many_digits_stay_as_are_asked_for():
    puzzles = make_puzzles(3, 40, (30, 33), 1)
    given = (puzzles.questions > 0).sum(axis=1)
    assert given.min() >= 30
    assert given.max() <= 33
    assert len(set(given.tolist())) > 1
    shown = puzzles.questions > 0
    assert (puzzles.questions[shown] == puzzles.answers[shown]).all()


def test_no_digit_of_a_puzzle_that_was_dug_to_the_end_is_needless():
    puzzles = make_puzzles(2, 12, (0, 0), 2)
    for question, answer in zip(puzzles.questions, puzzles.answers, strict=True):
        text = "".join(map(str, question)).replace("0", ".")
        assert solutions(text, 2) == ["".join(map(str, answer))]
        for place in np.flatnonzero(question):
            assert len(solutions(text[:place] + "." + text[place + 1 :], 2)) == 2


def test_the_solver_tells_what_can_be_solved(monkeypatch):
    monkeypatch.setattr(solver, "AT_ONCE", 2)
    answer = make_puzzles(3, 1, (40, 40), 3).answers[0].reshape(9, 9).astype(int)
    state = np.full((9, 9, 4), every_digit(3))
    state[:5] = (1 << (answer[:5] - 1))[:, :, None]
    state[0, 0, 1] = state[0, 1, 1]  # twice in a row
    state[8, :, 2] &= ~np.uint16(1)  # nowhere for the digit 1
    state[8, 0, 3] = 1 << (answer[0, 0] - 1)  # twice in a column
    assert solvable(state, 3).tolist() == [True, False, False, False]


def test_a_symmetry_moves_a_puzzle_and_its_answer_alike():
    base = make_puzzles(2, 3, (4, 8), 0)
    many = moved(base, 2, 500, np.random.default_rng(0))
    assert len({answer.tobytes() for answer in many.answers}) > 100
    shown = many.questions > 0
    assert (many.questions[shown] == many.answers[shown]).all()
    assert set((shown.sum(axis=1)).tolist()) == set((base.questions > 0).sum(axis=1).tolist())
    for question, answer in islice(zip(many.questions, many.answers, strict=True), 30):
        text = "".join(map(str, question)).replace("0", ".")
        assert solutions(text, 2) == ["".join(map(str, answer))]


def test_symmetries_turn_grids_over_and_keep_bands_together():
    """A grid that shows its cells' numbers: a band's rows stay beside one another, whichever way it is turned."""
    from unmask.data.sudoku import _cells

    cells = _cells(3, 200, np.random.default_rng(1)).reshape(200, 9, 9)
    rows, columns = cells // 9, cells % 9
    upright = (rows == rows[:, :, :1]).all(axis=(1, 2))
    turned = (columns == columns[:, :, :1]).all(axis=(1, 2))
    assert (upright ^ turned).all()
    assert 60 < upright.sum() < 140
    band = np.where(upright[:, None], rows[:, :, 0], columns[:, :, 0]) // 3
    assert (band.reshape(200, 3, 3) == band.reshape(200, 3, 3)[:, :, :1]).all()


def test_an_item_depends_on_the_seed_and_its_number_alone():
    texts = [document.text for document in SMALL.documents()]
    assert texts == [document.text for document in SMALL.documents()]
    fewer = SMALL.model_copy(update={"count": 7, "validation": 3})
    assert [document.text for document in fewer.documents()] == [*texts[:7], *texts[300:303]]
    other = SMALL.model_copy(update={"seed": 6})
    assert next(other.items(held_out=False)) != texts[0]
    late = next(islice(SMALL.items(held_out=False), CHUNK, None))
    assert late not in texts[:1]


@pytest.mark.parametrize("source", [SMALL, LARGE])
def test_no_answer_is_on_both_sides(source):
    train = {item.split("=")[1] for item in islice(source.items(held_out=False), 3000)}
    held_out = {item.split("=")[1] for item in islice(source.items(held_out=True), 3000)}
    assert not train & held_out
    assert len(held_out) > 5
    names = [document.name for document in source.documents()]
    assert sum(map(source.held_out, names)) == source.validation


def test_held_out_items_come_from_other_base_puzzles():
    train, held_out = LARGE.base(held_out=False), LARGE.base(held_out=True)
    assert (len(train.answers), len(held_out.answers)) == (24, 3)
    assert not {a.tobytes() for a in train.answers} & {a.tobytes() for a in held_out.answers}


@pytest.mark.parametrize("place", [(0, 1), (0, 9), (0, 10)])
def test_a_broken_rule_is_seen(place):
    """Two cells of a row, a column or a box exchanged break the rules of others."""
    answer = list(next(LARGE.items(held_out=False)).split("=")[1])
    one, other = place
    answer[one], answer[other] = answer[other], answer[one]
    assert not LARGE.is_correct("".join(answer))
    answer[one], answer[other] = answer[other], "="
    assert not LARGE.is_correct("".join(answer))


def test_rows_and_columns_alone_do_not_make_a_sudoku():
    lines = ["123456789"[i:] + "123456789"[:i] for i in range(9)]
    assert not LARGE.is_correct("".join(lines))
    assert LARGE.is_correct("".join(lines[i] for i in (0, 3, 6, 1, 4, 7, 2, 5, 8)))


@pytest.mark.parametrize("givens", [[30, 20], [-1, 4], [30, 81]])
def test_givens_are_in_order(givens):
    with pytest.raises(UnmaskError, match="givens go from the fewest to the most"):
        registry.build("source", {"name": "sudoku", "givens": givens})
