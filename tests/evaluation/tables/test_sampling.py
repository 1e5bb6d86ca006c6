"""Generated texts under the AR judge."""

from __future__ import annotations

import math

import pytest

from unmask.evaluation.generation import GenerationEvaluation, GenerationSettings, Texts
from unmask.evaluation.judge import open_judge
from unmask.evaluation.tables.sampling import WAYS


def test_ways_of_sampling_differ_in_entropy(reproduce):
    table = reproduce("sampling")
    assert list(table.rows) == ["data", *WAYS, "AR"]
    entropy = {label: row["entropy"].value for label, row in table.rows.items()}
    assert entropy["ancestral"] > entropy["by confidence, greedy"]
    assert {row.get("kind") for row in table.rows.values()} == {"stochastic", "hybrid", "deterministic", None}
    assert table.rows["ancestral"]["judge perplexity"].interval


def test_figure_2_has_a_curve_for_each_model(reproduce):
    table = reproduce("figure2", steps=(2, 8))
    assert list(table.rows) == ["MDLM, T = 2", "MDLM, T = 8", "SEDD, T = 2", "SEDD, T = 8", "AR"]
    assert [(curve.label, len(curve.x)) for curve in table.curves] == [("MDLM", 2), ("SEDD", 2), ("AR", 1)]
    assert table.rows["SEDD, T = 8"]["calls"].value == 8
    assert table.rows["AR"]["calls"].value == 16


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
