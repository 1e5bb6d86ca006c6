"""Generated texts under the AR judge."""

from __future__ import annotations

import math

import pytest

from unmask.evaluation.generation import GenerationEvaluation, GenerationSettings, Texts
from unmask.evaluation.judge import open_judge
from unmask.evaluation.tables.sampling import WAYS, perplexity_by_position, repetition_by_distance


def test_ways_of_sampling_differ_in_entropy(reproduce):
    table = reproduce("sampling")
    assert list(table.rows) == ["data", *WAYS, "AR"]
    entropy = {label: row["entropy"].value for label, row in table.rows.items()}
    assert entropy["ancestral"] > entropy["by confidence, greedy"]
    assert {row.get("kind") for row in table.rows.values()} == {"stochastic", "hybrid", "deterministic", None}
    assert table.rows["ancestral"]["judge perplexity"].interval


def test_figure_2_has_a_curve_for_each_model(reproduce):
    table = reproduce("figure2", steps=(2, 8))
    assert list(table.rows) == ["data", "MDLM, T = 2", "MDLM, T = 8", "SEDD, T = 2", "SEDD, T = 8", "AR"]
    assert [(curve.label, len(curve.x)) for curve in table.curves] == [("MDLM", 2), ("SEDD", 2), ("AR", 1)]
    assert table.rows["SEDD, T = 8"]["calls"].value == 8
    assert table.rows["AR"]["calls"].value == 16


def test_texts_beyond_the_context_are_judged_by_window_and_stride(reproduce):
    table = reproduce("table5", samples=2)
    windows = {16: (2, 4, 8, 16), 8: (1, 2, 4, 8), 4: (1, 2, 4)}
    labels = [f"MDLM, window {size}, stride {stride}" for size, strides in windows.items() for stride in strides]
    assert list(table.rows)[:-2] == ["data", *labels, "AR, window 16, stride 8"]
    assert {curve.label for curve in table.curves} == {"AR", *(f"MDLM, window {size}" for size in windows)}
    assert table.published["MDLM, published"] == {"judge perplexity": 27.18, "seconds per text": 89.3}


def test_long_texts_have_curves_by_position_and_distance(reproduce):
    table = reproduce("long-text", samples=2)
    assert len(table.rows) == 12
    by_position = [curve for curve in table.curves if curve.axis.startswith("judge")]
    assert [list(curve.x) for curve in by_position] == [[1 + half / 2 for half in range(15)]] * 3
    assert [list(curve.x) for curve in table.curves if curve not in by_position] == [list(range(8))] * 3


def test_positions_of_a_text_add_up_to_its_likelihood():
    judge = open_judge("stories-ar")
    ids = judge.encode(["Once upon a time there was a dog. " * 20, "A cat. " * 90])
    judge.context = 32
    texts = [row[: 4 * judge.context] for row in ids]
    nats = [math.log(one.value) for one in perplexity_by_position(judge, texts)]
    total = nats[0] * 2 * judge.context + sum(nats[1:]) * judge.context
    assert total == pytest.approx(judge.nll(texts).sum(), rel=1e-4)


def test_repetition_is_counted_by_distance():
    text = [0, 1, 2, 3, 4, 5, 6, 7, 20, 20, 20, 20, 20, 20, 20, 20, 0, 1, 2, 3, 4, 30, 31, 32]
    assert [one.value for one in repetition_by_distance([text], 8)] == pytest.approx([4 / 15, 0.0, 2 / 5])


def test_a_prompt_is_read_and_not_measured():
    judge = open_judge("stories-ar")
    evaluation = GenerationEvaluation(judge, GenerationSettings(1))
    for texts in (["Once upon a time"], ["Once upon a time there was"]):
        evaluation.add_texts("", "texts", Texts(texts))
    evaluation.add_texts("", "texts", Texts(["Once upon a time there was"], prompts=["Once upon a time"]))
    prompt, whole, rest = (row.metrics for row in evaluation.rows)
    assert rest["tokens"].value == whole["tokens"].value - prompt["tokens"].value
    nats = [math.log(one["perplexity"].value) * one["tokens"].value for one in (prompt, whole, rest)]
    assert nats[2] == pytest.approx(nats[1] - nats[0], rel=1e-4)
