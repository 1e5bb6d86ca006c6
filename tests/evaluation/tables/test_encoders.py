"""Table 4: AR, BERT and BERT after MDLM fine-tuning, on the same text and tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.evaluation.tables.conftest import make_table
from unmask.data.glue import TASKS
from unmask.data.protocols import get_protocol
from unmask.evaluation.glue import GlueSettings
from unmask.evaluation.tables.base import merge
from unmask.evaluation.tables.encoders import (
    AR,
    BERT,
    MDLM,
    PUBLISHED,
    SCALES,
    GlueScale,
    published_scores,
    table4_runs,
)
from unmask.evaluation.tables.workspace import Workspace
from unmask.pipeline import load

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

SMALLEST = {
    "data": {"length": 16},
    "model": {"hidden_size": 16, "layers": 1, "heads": 1, "dropout": 0.0},
    "optimizer": {"name": "adamw", "learning_rate": 0.01, "ema": 0.5},
    "training": {"steps": 6, "batch_size": 4, "save_every": 6, "validate_every": 6, "validation_rows": 2},
}
SCALE = GlueScale(
    "stdlib",
    SMALLEST,
    documents=2,
    samples=3,
    fine_tuning={"training": {"steps": 4}},
    settings=GlueSettings(learning_rates=(1e-3,), seeds=2, epochs=1, limit=24),
)


def test_the_table_has_glue_bound_and_samples_and_is_resumed(tmp_path, monkeypatch):
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    table, trained = make_table(tmp_path, "table4", SCALE)
    assert trained == [f"{name}, seed 0" for name in (AR, BERT, MDLM)]
    assert table.columns == [AR, BERT, MDLM]
    glue = ["toy, accuracy"]
    likelihoods = ["perplexity, stdlib", "bits per byte, stdlib"]
    samples = ["samples, judge perplexity", "samples, entropy", "samples, repetition"]
    assert list(table.rows) == [*glue, *likelihoods, *samples, "parameters, millions"]
    assert all(set(row) == {AR, BERT, MDLM} for row in table.rows.values())
    assert [table.rows["perplexity, stdlib"][name].bound for name in table.columns] == [False, True, True]
    assert table.bar_rows == glue
    _, bert, mdlm = table4_runs(SCALE, get_protocol("stdlib"))
    before, after = (load(Workspace(tmp_path).train(run), device="cpu").denoiser for run in (bert, mdlm))
    assert after.config.network.model_type == before.config.network.model_type == "bert"
    moved = [torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert not all(moved), "MDLM fine-tuning trains"
    other = merge(SMALLEST, {"training": {"steps": 7}})
    assert table4_runs(replace(SCALE, recipe=other), get_protocol("stdlib"))[2].folder != mdlm.folder


def test_fine_tuning_starts_from_the_encoder(tmp_path, monkeypatch):
    still = {"optimizer": {"learning_rate": 1e-12}, "training": {"steps": 1}}
    runs = table4_runs(replace(SCALE, fine_tuning=still), get_protocol("stdlib"))
    workspace = Workspace(tmp_path)
    before, after = (load(workspace.train(run), device="cpu").denoiser for run in runs[1:])
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(old, new, rtol=0, atol=1e-6)


def test_published_scores_stand_beside_their_rows():
    rows = {f"{task.name}, {score}": {} for task in TASKS.values() for score in task.all_scores} | {"average": {}}
    published = published_scores(rows)
    assert published["CoLA, Matthews"] == {AR: 33.43, BERT: 54.81, MDLM: 57.69}
    assert published["MRPC, F1"][MDLM] == 90.53
    assert published["STS-B, Spearman"][BERT] == 88.41
    assert published["average"][MDLM] == 82.06
    assert "average" not in published_scores({"RTE, accuracy": {}, "average": {}})
    for column, figures in PUBLISHED.items():  # the average is over all nine figures, of which MNLI has two
        assert sum(figures[:-1]) / 9 == pytest.approx(figures[-1], abs=0.02), column


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_recipes_of_the_larger_scales(scale):
    size = SCALES[scale]
    ar, bert, mdlm = table4_runs(size, get_protocol(size.protocol))
    assert ar.recipe.training == bert.recipe.training
    published = (mdlm.recipe.training.steps, mdlm.recipe.optimizer.learning_rate, mdlm.recipe.optimizer.warmup)
    assert (published == (5000, 5e-5, 2500)) == (scale == "paper")
    assert mdlm.recipe.training.batch_size == 512
    assert [run.recipe.objective.name for run in (ar, bert, mdlm)] == ["ar", "mlm", "subs"]
    assert {run.recipe.data.tokenizer.path for run in (ar, bert, mdlm)} == {"bert-base-uncased"}
    assert {run.recipe.data.length for run in (ar, bert, mdlm)} == {126}
