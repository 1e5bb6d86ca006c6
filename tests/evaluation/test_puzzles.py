"""Puzzles solved by a planted denoiser that sees one step back: what each order must come to is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unmask import registry
from unmask.checkpoint import CheckpointConfig
from unmask.data.encoding import encode
from unmask.data.puzzles import PathsSource
from unmask.errors import UnmaskError
from unmask.evaluation.puzzles import PuzzleEvaluation, puzzles_of, rows_of_items, solve
from unmask.evaluation.tasks import Strategy, contenders, parse_rules, ways_of, wilson
from unmask.laws.tables import TableConfig
from unmask.pipeline import MaskedDiffusionLM

SOURCE = PathsSource(degree=3, arm=4, names=12, count=10, validation=120)
TOKENIZER = registry.build("tokenizer", {"name": "char", "alphabet": SOURCE.alphabet}).build(lambda: iter(()))
LENGTH = 9 * 3 + 3 + 4


class OneStepBack(torch.nn.Module):
    """Knows the ends of a way, and the node before a node that it sees; of a node's followers it guesses one."""

    def __init__(self) -> None:
        super().__init__()
        self.config = TableConfig(len(TOKENIZER), TOKENIZER.mask_token_id, LENGTH)
        self.calls = 0

    def hidden(self, input_ids, alpha=None, attention_mask=None):
        self.calls += 1
        rows = torch.full((*input_ids.shape, len(TOKENIZER)), -20.0)
        for row, ids in enumerate(input_ids.tolist()):
            cells = [" " if i == self.config.mask_token_id else TOKENIZER.convert_ids_to_tokens(i) for i in ids]
            edges = ["".join(cells[i : i + 2]) for i in range(0, 27, 3)]
            for place in range(30, 34):
                for token in self._possible(cells, edges, place):
                    rows[row, place, encode(TOKENIZER, [token])[0][0]] = 0.0
        return rows

    def head(self, rows, mask_logit=False):
        return rows

    @staticmethod
    def _possible(cells: list[str], edges: list[str], place: int) -> list[str]:
        if place in (30, 33):
            return [cells[27] if place == 30 else cells[28]]
        before = [edge[0] for edge in edges if edge[1] == cells[place + 1]]
        behind = [edge[1] for edge in edges if edge[0] == cells[place - 1]]
        return before or behind or sorted({edge[1] for edge in edges})


@pytest.fixture
def lm() -> MaskedDiffusionLM:
    protocol = {"data": {"source": SOURCE.model_dump(mode="json")}}
    card = CheckpointConfig(policy="prompted", length=LENGTH, protocol=protocol)
    return MaskedDiffusionLM(OneStepBack(), TOKENIZER, card, Path("planted"))


def lucky(items: list[str]) -> list[bool]:
    """Whether the first of a start's followers, by token, is the right one."""
    found = []
    for item in items:
        question, way = item.split("=")
        followers = [edge[1] for edge in question.split("/")[0].split(",") if edge[0] == way[0]]
        found.append(way[1] == min(followers, key=lambda name: encode(TOKENIZER, [name])[0][0]))
    return found


@pytest.mark.parametrize("order", ["confidence", "margin", "entropy", "threshold"])
def test_the_surest_first_goes_back_from_the_goal_and_is_always_right(lm, order):
    contest = PuzzleEvaluation.of(lm, 20)
    contest.enter(lm, [Strategy(order=order)])
    figures = contest.rows[0].figures
    assert [figures[name].value for name in ("accuracy", "cells", "valid")] == [1.0, 1.0, 1.0]
    assert figures["calls"].value == (3.0 if order == "threshold" else 4.0)


def test_from_left_to_right_only_the_lucky_arrive(lm):
    contest = PuzzleEvaluation.of(lm, 120)
    contest.enter(lm, [Strategy(order="left_to_right"), Strategy("stochastic", order="left_to_right")])
    right = np.array(lucky(contest.items))
    greedy, stochastic = (row.figures for row in contest.rows)
    assert greedy["accuracy"].value == pytest.approx(right.mean())
    assert greedy["valid"].value == greedy["accuracy"].value
    assert greedy["cells"].value == pytest.approx(0.5 + 0.5 * right.mean())
    assert abs(stochastic["accuracy"].value - 1 / 3) < 4 * (2 / 9 / 120) ** 0.5
    assert greedy["accuracy"].low < greedy["accuracy"].value < greedy["accuracy"].high


def test_more_steps_are_better_and_given_tokens_stay(lm):
    contest = PuzzleEvaluation.of(lm, 40)
    ways = ways_of(lm, ["confidence", "threshold"], [], ["greedy"], [1, 2, 3, None])
    assert [(way.order, way.steps) for way in ways] == [
        ("confidence", 1), ("confidence", 2), ("confidence", 3), ("confidence", None), ("threshold", None),
    ]  # fmt: skip
    contest.enter(lm, ways)
    solved = [row.figures["accuracy"].value for row in contest.rows]
    assert solved[0] < 0.2
    assert solved[0] <= solved[1] < solved[3] == solved[4] == 1.0
    assert [row.figures["calls"].value for row in contest.rows[:4]] == [1, 2, 3, 4]
    (errors, _) = contenders(contest.rows, "accuracy")
    assert [trial.calls for trial in errors.trials] == [1, 2, 3, 4]


def test_only_open_cells_are_counted_and_batches_do_not_matter(lm):
    items = PuzzleEvaluation.of(lm, 10).items
    rows = rows_of_items(lm, items)
    whole = solve(lm, SOURCE, rows, Strategy("stochastic", order="uniform"))
    parts = solve(lm, SOURCE, rows, Strategy("stochastic", order="uniform"), batch_size=3)
    assert whole.cells.tolist() == [4.0] * 10
    assert whole.right_cells.tolist() == parts.right_cells.tolist()
    assert (whole.seconds > 0).all()
    assert set(whole.right.tolist()) == {0.0, 1.0}


def test_a_valid_answer_need_not_be_the_expected_one(lm):
    """Of an item whose start has two names for one way, only validity is whole."""
    question, way = next(SOURCE.items(held_out=True)).split("=")
    rows = rows_of_items(lm, [f"{question}={way[0]}{way[0]}{way[2:]}"])
    solved = solve(lm, SOURCE, rows, Strategy(order="confidence"))
    assert (solved.right.tolist(), solved.right_cells.tolist(), solved.valid.tolist()) == ([0.0], [3.0], [1.0])


@pytest.mark.parametrize(
    ("right", "n", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (1000, 1000, 0.9962, 1.0)]
)
def test_intervals_are_wilsons(right, n, low, high):
    found = wilson(np.array([1.0] * right + [0.0] * (n - right)))
    assert (found.value, found.low, found.high) == pytest.approx((right / n, low, high), abs=1e-4)


def test_what_is_no_puzzle_model_is_told_so(mdlm):
    with pytest.raises(UnmaskError, match="does not say what it was trained on, not on puzzles; make one with"):
        puzzles_of(mdlm)


def test_a_rule_is_one_of_two():
    assert parse_rules(["stochastic", "greedy", "greedy"]) == ["greedy", "stochastic"]
    with pytest.raises(UnmaskError, match="Did you mean 'greedy'"):
        parse_rules(["gredy"])
