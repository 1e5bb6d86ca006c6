"""Puzzles solved by a planted denoiser that sees one step back, so that the result of each order is known."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask import registry
from unmask.checkpoint import CheckpointConfig
from unmask.data.encoding import encode
from unmask.data.puzzles import PathsSource
from unmask.evaluation.tasks import (
    PuzzleEvaluation,
    Strategy,
    make_strategies,
    puzzle_rows,
    solve,
)
from unmask.laws.tables import TableConfig
from unmask.pipeline import MaskedDiffusionLM

SOURCE = PathsSource(degree=3, arm=4, names=12, count=10, validation=120)
TOKENIZER = registry.build("tokenizer", {"name": "char", "alphabet": SOURCE.alphabet}).build()
LENGTH = 9 * 3 + 3 + 4


class OneStepBack(torch.nn.Module):
    """Knows both ends of a path, and the node before a visible node; among the followers of a node it guesses."""

    def __init__(self) -> None:
        super().__init__()
        self.config = TableConfig(len(TOKENIZER), TOKENIZER.mask_token_id, LENGTH)

    def hidden(self, input_ids, alpha=None, attention_mask=None):
        rows = torch.full((*input_ids.shape, len(TOKENIZER)), -20.0)
        for row, ids in enumerate(input_ids.tolist()):
            cells = [" " if i == self.config.mask_token_id else TOKENIZER.convert_ids_to_tokens(i) for i in ids]
            edges = ["".join(cells[i : i + 2]) for i in range(0, 27, 3)]
            for position in range(30, 34):
                for token in self._candidates(cells, edges, position):
                    rows[row, position, encode(TOKENIZER, [token])[0][0]] = 0.0
        return rows

    def head(self, rows, mask_logit=False):
        return rows

    @staticmethod
    def _candidates(cells: list[str], edges: list[str], position: int) -> list[str]:
        if position in (30, 33):
            return [cells[27] if position == 30 else cells[28]]
        before = [edge[0] for edge in edges if edge[1] == cells[position + 1]]
        after = [edge[1] for edge in edges if edge[0] == cells[position - 1]]
        return before or after or sorted({edge[1] for edge in edges})


@pytest.fixture
def lm() -> MaskedDiffusionLM:
    protocol = {"data": {"source": SOURCE.model_dump(mode="json")}}
    card = CheckpointConfig(policy="prompted", length=LENGTH, protocol=protocol)
    return MaskedDiffusionLM(OneStepBack(), TOKENIZER, card, Path("planted"))


def first_guess_is_right(items: list[str]) -> list[bool]:
    """Whether the follower of the start with the lowest token id is the right one."""
    found = []
    for item in items:
        question, path = item.split("=")
        followers = [edge[1] for edge in question.split("/")[0].split(",") if edge[0] == path[0]]
        found.append(path[1] == min(followers, key=lambda name: encode(TOKENIZER, [name])[0][0]))
    return found


@pytest.mark.parametrize("order", ["confidence", "margin", "entropy", "threshold"])
def test_confident_tokens_first_solves_every_puzzle(lm, order):
    evaluation = PuzzleEvaluation.of(lm, 20)
    evaluation.run(lm, [Strategy(order=order)])
    metrics = evaluation.rows[0].metrics
    assert [metrics[name].value for name in ("accuracy", "cells", "valid")] == [1.0, 1.0, 1.0]
    assert metrics["calls"].value == (3.0 if order == "threshold" else 4.0)


def test_left_to_right_solves_the_puzzles_it_guesses(lm):
    evaluation = PuzzleEvaluation.of(lm, 120)
    evaluation.run(lm, [Strategy(order="left_to_right"), Strategy("stochastic", order="left_to_right")])
    assert evaluation.groups[None] == list(islice(SOURCE.items(held_out=True), 120))
    right = np.array(first_guess_is_right(evaluation.groups[None]))
    greedy, stochastic = (row.metrics for row in evaluation.rows)
    assert greedy["accuracy"].value == pytest.approx(right.mean())
    assert greedy["valid"].value == greedy["accuracy"].value
    assert greedy["cells"].value == pytest.approx(0.5 + 0.5 * right.mean())
    assert abs(stochastic["accuracy"].value - 1 / 3) < 4 * (2 / 9 / 120) ** 0.5
    assert stochastic["cells"].value != greedy["cells"].value
    assert greedy["accuracy"].low < greedy["accuracy"].value < greedy["accuracy"].high


def test_more_steps_are_better_and_adaptive_orders_take_none(lm):
    evaluation = PuzzleEvaluation.of(lm, 40)
    strategies = make_strategies(lm, ["confidence", "threshold"], [], ["greedy"], [1, 2, 3, None])
    assert [(one.order, one.steps) for one in strategies] == [
        ("confidence", 1), ("confidence", 2), ("confidence", 3), ("confidence", None), ("threshold", None),
    ]  # fmt: skip
    evaluation.run(lm, strategies)
    solved = [row.metrics["accuracy"].value for row in evaluation.rows]
    assert solved[0] < 0.2
    assert solved[0] <= solved[1] < solved[3] == solved[4] == 1.0
    assert [row.metrics["calls"].value for row in evaluation.rows[:4]] == [1, 2, 3, 4]


def test_only_target_cells_count_and_batches_do_not_matter(lm):
    rows = puzzle_rows(lm, PuzzleEvaluation.of(lm, 10).groups[None])
    done = []
    whole = solve(lm, SOURCE, rows, Strategy("stochastic", order="uniform"), progress=done.append)
    parts = solve(lm, SOURCE, rows, Strategy("stochastic", order="uniform"), batch_size=3, progress=done.append)
    assert done == [10, 3, 3, 3, 1]
    assert whole["cells"].tolist() == [4.0] * 10
    assert whole["right_cells"].tolist() == parts["right_cells"].tolist()
    assert (whole["seconds"] > 0).all()
    assert set(whole["accuracy"].tolist()) == {0.0, 1.0}


def test_a_valid_answer_may_differ_from_the_expected_one(lm):
    question, path = next(SOURCE.items(held_out=True)).split("=")
    rows = puzzle_rows(lm, [f"{question}={path[0]}{path[0]}{path[2:]}"])
    solved = solve(lm, SOURCE, rows, Strategy(order="confidence"))
    assert [solved[name].tolist() for name in ("accuracy", "right_cells", "valid")] == [[0.0], [3.0], [1.0]]
