"""Generated sources: Markov chains of known entropy, paths with one answer, and sudoku with one solution."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import yaml

from unmask import registry
from unmask.data.puzzles import (
    CHUNK,
    MarkovSource,
    PathsSource,
    PuzzleSource,
    SudokuSource,
    make_puzzles,
    random_cell_order,
    transform,
)
from unmask.errors import UnmaskError

CHAIN = MarkovSource(alphabet="abc", sharpness=1.5, count=400, length=50, seed=3)
PATHS = PathsSource(degree=4, arm=4, names=20, count=50, validation=20, seed=2)
SMALL = SudokuSource(box=2, bases=64, count=300, validation=50, seed=5)
LARGE = SudokuSource(bases=24, givens=(26, 32), count=20, validation=20)


def items(source: PuzzleSource, held_out: bool, number: int = 200) -> list[str]:
    return list(islice(source.items(held_out), number))


def test_the_entropy_is_that_of_all_texts_enumerated() -> None:
    chance = {"".join(text): 2 ** -CHAIN.nll_bits("".join(text)) for text in itertools.product("abc", repeat=5)}
    assert sum(chance.values()) == pytest.approx(1.0)
    assert -sum(p * np.log2(p) for p in chance.values()) == pytest.approx(CHAIN.bits(5))
    assert CHAIN.bits_per_character() == CHAIN.bits(50) / 50
    assert MarkovSource(sharpness=0.0).bits(1) == pytest.approx(3.0)
    rates = [MarkovSource(sharpness=sharpness).bits(100) for sharpness in (0.5, 1.0, 3.0)]
    assert rates == sorted(rates, reverse=True)


def test_documents_follow_the_chain_from_the_first_letter_to_the_last() -> None:
    texts = [document.text for document in CHAIN.documents()]
    assert {len(text) for text in texts} == {50}
    bits = [CHAIN.nll_bits(text) / 50 for text in texts]
    assert abs(np.mean(bits) - CHAIN.bits(50) / 50) < 4 * np.std(bits) / len(bits) ** 0.5
    for place in (0, 49):
        share = np.mean([text[place] == "a" for text in texts])
        assert abs(share - CHAIN.stationary[0]) < 4 * (0.25 / len(texts)) ** 0.5
    pairs = Counter(pair for text in texts for pair in itertools.pairwise(text))
    for a, b in itertools.product(range(3), repeat=2):
        after_a = sum(pairs["abc"[a], letter] for letter in "abc")
        assert abs(pairs["abc"[a], "abc"[b]] / after_a - CHAIN.transitions[a, b]) < 4 * (0.25 / after_a) ** 0.5


def test_a_document_depends_on_the_seed_and_its_number_alone() -> None:
    texts = [document.text for document in CHAIN.documents()]
    assert [document.text for document in CHAIN.model_copy(update={"count": 5}).documents()] == texts[:5]
    assert len(set(texts)) == len(texts)
    assert next(MarkovSource(seed=1).documents()).text != next(MarkovSource(seed=2).documents()).text


@pytest.mark.parametrize("source", [PATHS, SMALL])
def test_a_puzzle_depends_on_the_seed_and_its_number_alone(source: PuzzleSource) -> None:
    texts = [document.text for document in source.documents()]
    assert texts == [*items(source, False, source.count), *items(source, True, source.validation)]
    fewer = source.model_copy(update={"count": 5, "validation": 2})
    assert [document.text for document in fewer.documents()] == [*texts[:5], *texts[source.count : source.count + 2]]
    assert next(source.model_copy(update={"seed": 3}).items(held_out=False)) != texts[0]
    assert next(islice(source.items(held_out=False), CHUNK, None)) != texts[0]
    names = [document.name for document in source.documents()]
    assert sum(map(source.held_out, names)) == source.validation


@pytest.mark.parametrize("source", [PathsSource(degree=2, arm=2, names=6), SMALL, LARGE])
def test_no_answer_is_on_both_sides(source: PuzzleSource) -> None:
    train, held_out = ({item.split("=")[1] for item in items(source, side, 4000)} for side in (False, True))
    assert not train & held_out
    assert len(held_out) > 1
    if isinstance(source, PathsSource):
        assert len(train | held_out) == 30, "all answers occur"


def test_a_path_puzzle_is_a_star_and_the_path_to_the_end_of_an_arm() -> None:
    for item in items(PATHS, False):
        question, path = item.split("=")
        listed, ends = question.split("/")
        edges = [tuple(edge) for edge in listed.split(",")]
        out, into = Counter(a for a, _ in edges), Counter(b for _, b in edges)
        assert len(edges) == 12
        assert out[ends[0]] == 4
        assert ends[0] not in into
        assert set(into.values()) == {1}
        assert sorted(n for node, n in out.items() if node != ends[0]) == [1] * 8
        assert ends[1] not in out
        parent = {b: a for a, b in edges}
        back = [ends[1]]
        while back[-1] in parent:
            back.append(parent[back[-1]])
        assert "".join(reversed(back)) == path
        assert len(path) == 4
        assert PATHS.is_correct(item)


def test_only_the_edges_of_a_question_tell_the_path() -> None:
    """The first edge and the names are no better than chance: one arm of four, one name of twenty."""
    several = items(PATHS, False, 4000)
    first = sum(item[:2] in item.split("=")[1] for item in several) / 4000
    assert abs(first - 1 / 4) < 4 * (0.1875 / 4000) ** 0.5
    starts = Counter(item.split("=")[1][0] for item in several)
    assert len(starts) == 20
    assert max(starts.values()) < 4000 / 20 * 1.6


def test_a_path_that_leads_elsewhere_is_not_correct() -> None:
    question, path = items(PATHS, True)[0].split("=")
    listed, _ = question.split("/")
    elsewhere = next(edge for edge in listed.split(",") if edge[0] == path[0] and edge[1] != path[1])
    follower = dict(listed.split(","))
    along = path[0] + elsewhere[1]
    while along[-1] in follower:
        along += follower[along[-1]]
    assert len(along) == len(path)
    for wrong in (path[0] + elsewhere[1] + path[2:], path[:-1] + path[0], path[1] + path[1:], "===", along):
        assert not PATHS.is_correct(f"{question}={wrong}")


def test_the_documented_length_of_paths_is_that_of_its_rows() -> None:
    page = Path(__file__).parents[2] / "docs" / "evaluation.md"
    command = r"unmask train paths data.source='(\{name: paths, .*\})' data.length=(\d+)"
    options, length = re.findall(command, page.read_text(encoding="utf-8"))[0]
    source = registry.build("source", {**yaml.safe_load(options), "count": 4, "validation": 2})
    assert {len(document.text) for document in source.documents()} == {int(length)}


@pytest.mark.parametrize("place", [(0, 1), (0, 9), (0, 10)])
def test_a_broken_rule_of_sudoku_is_seen(place: tuple[int, int]) -> None:
    """Two exchanged cells of a row, a column or a box break the rules of others."""
    answer = list(next(LARGE.items(held_out=False)).split("=")[1])
    assert LARGE.is_correct("".join(answer))
    one, other = place
    answer[one], answer[other] = answer[other], answer[one]
    assert not LARGE.is_correct("".join(answer))
    answer[one], answer[other] = answer[other], "="
    assert not LARGE.is_correct("".join(answer))


def test_rows_and_columns_alone_do_not_make_a_sudoku() -> None:
    lines = ["123456789"[i:] + "123456789"[:i] for i in range(9)]
    assert not LARGE.is_correct("".join(lines))
    assert LARGE.is_correct("".join(lines[i] for i in (0, 3, 6, 1, 4, 7, 2, 5, 8)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "markov", "alphabet": "a"}, "at least two letters"),
        ({"name": "markov", "alphabet": "aa"}, "at least two letters"),
        ({"name": "paths", "names": 20}, "5 arms of 5 nodes need 21 names"),
        ({"name": "sudoku", "givens": [30, 20]}, "givens must be the fewest and the most"),
        ({"name": "sudoku", "givens": [-1, 4]}, "givens must be the fewest and the most"),
        ({"name": "sudoku", "givens": [30, 81]}, "givens must be the fewest and the most"),
    ],
)
def test_bad_options_are_errors(spec: dict[str, object], message: str) -> None:
    with pytest.raises(UnmaskError, match=message):
        registry.build("source", spec)


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
