"""Tables 6 and 7 at a size below `tiny`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.evaluation.tables.conftest import make_table
from unmask.data.protocols import get_protocol
from unmask.evaluation.glue import GlueSettings
from unmask.evaluation.tables import get_experiment
from unmask.evaluation.tables.base import seeded_runs
from unmask.evaluation.tables.dna import (
    HYENA,
    MAMBA,
    MDLM,
    MLM,
    MODELS,
    PLAID,
    SEDD,
    TABLE6,
    TABLE6_SCALES,
    TABLE7,
    DNAScale,
    dna_tasks,
)

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

SMALLEST = {
    "data": {"length": 16},
    "model": {"hidden_size": 8, "layers": 1},
    "optimizer": {"name": "adamw", "learning_rate": 0.01, "ema": 0.5},
    "training": {"steps": 3, "batch_size": 2, "save_every": 3, "validate_every": 3, "validation_rows": 2},
}
SCALE = DNAScale(
    "toy-dna",
    SMALLEST,
    documents=2,
    files=False,
    settings=GlueSettings(learning_rates=(1e-3,), seeds=2, epochs=1, limit=8),
)


def test_both_tables_share_runs_and_are_resumed(tmp_path):
    table, trained = make_table(tmp_path, "table6", SCALE)
    assert trained == [f"{name}, seed 0" for name in TABLE6]
    assert list(table.rows) == [MAMBA, HYENA, PLAID, SEDD, MDLM]
    assert table.rows[PLAID] == {}
    assert [table.rows[name]["perplexity"].bound for name in TABLE6] == [False, False, True, True]
    assert table.columns == ["perplexity", "bits per base", "parameters, millions"]
    assert table.notes[0].startswith("Every model reads 96 bases in rows of 16.")
    assert {label: row["perplexity"] for label, row in table.published.items()}[MDLM] == 3.199

    table, trained = make_table(tmp_path, "table7", SCALE)
    assert trained == [f"{MLM}, seed 0"], "AR and MDLM are those of table6"
    assert table.columns == list(TABLE7)
    assert list(table.rows) == ["motif, Matthews", "motif, accuracy"]
    assert "Percent on the test set" in " ".join(table.notes)


def test_the_models_have_equal_parameters_batches_and_steps():
    scale = TABLE6_SCALES["small"]
    runs = seeded_runs(MODELS, scale, get_protocol("chr20"))
    assert len(runs) == 15
    assert len({run.folder for run in runs}) == 15
    assert len({(run.recipe.training.steps, run.recipe.training.batch_size) for run in runs}) == 1
    sizes = {}
    for run in runs:
        with torch.device("meta"):
            network = run.recipe.model.build(6, 5, 1024)
        sizes[run.label] = sum(one.numel() for one in network.parameters())
    assert max(sizes.values()) < 1.1 * min(sizes.values())
    assert all(430_000 < size < 475_000 for size in sizes.values()), sizes
    assert {run.recipe.model.name for run in runs if run.label in (SEDD, MDLM, MLM)} == {"caduceus-ps"}


def test_tasks_are_those_whose_files_are_there(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    folder = tmp_path / "dna/gue/tf"
    folder.mkdir(parents=True)
    for part in ("train", "dev", "test"):
        (folder / f"{part}.csv").write_text("sequence,label\nACGT,0\nACGG,1\n")
    tasks, missing = dna_tasks(replace(SCALE, files=True))
    assert [data.task.name for data in tasks] == ["tf"]
    assert missing == ["UNMASK_DATA has no tasks in dna/genomic_benchmarks."]
    assert [data.task.name for data in dna_tasks(SCALE)[0]] == ["motif"]


def test_the_trunks_experiment_has_equal_parameters():
    experiment = get_experiment("trunks")
    for name in ("small", "paper"):
        scale = experiment.scales[name]
        sizes = {}
        for run in experiment.runs(scale, get_protocol(scale.protocol)):
            with torch.device("meta"):
                network = run.recipe.model.build(28, 27, 256)
            sizes[run.label] = sum(one.numel() for one in network.parameters())
        assert list(sizes) == ["MDLM", "MDLM, bimamba"]
        assert max(sizes.values()) < 1.15 * min(sizes.values()), sizes
