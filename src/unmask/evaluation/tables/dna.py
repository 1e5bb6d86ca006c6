"""Genomes: likelihoods of state-space and convolutional models (Table 6), and their fine-tuning (Table 7)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from unmask.data.dna_tasks import motif_task, read_genomic_benchmarks, read_gue
from unmask.data.glue import TaskData
from unmask.data.protocols import DATA_VARIABLE, Protocol
from unmask.errors import UnmaskError
from unmask.evaluation.glue import GlueSettings, glue_table
from unmask.evaluation.tables.base import (
    TINY,
    Experiment,
    Run,
    Scale,
    ScaleName,
    Table,
    bounds_table,
    seeded_runs,
    with_parameters,
    without_model,
)
from unmask.evaluation.tables.encoders import fine_tune_runs
from unmask.evaluation.tables.workspace import Workspace

MAMBA, HYENA, SEDD, MDLM, MLM = "Mamba AR", "HyenaDNA AR", "SEDD", "MDLM", "MLM"
PLAID = "Plaid, published only"
CADUCEUS: dict[str, Any] = {"model": {"name": "caduceus-ps", "size": "dna"}}
MODELS: dict[str, dict[str, Any]] = {
    MAMBA: {"model": {"name": "mamba", "size": "dna"}, "objective": "ar"},
    HYENA: {"model": {"name": "hyena", "size": "dna", "causal": True}, "objective": "ar"},
    SEDD: CADUCEUS | {"objective": "sedd"},
    MDLM: CADUCEUS | {"objective": "subs"},
    MLM: CADUCEUS | {"objective": "mlm"},
}
"""What each model changes in the shared recipe."""
TABLE6 = {label: MODELS[label] for label in (MAMBA, HYENA, SEDD, MDLM)}
TABLE7 = {label: MODELS[label] for label in (MAMBA, MLM, MDLM)}
TABLE6_PUBLISHED = {MAMBA: 3.067, HYENA: 3.153, PLAID: 3.240, SEDD: 3.216, MDLM: 3.199}
TABLE7_PUBLISHED = {
    "dummy_mouse_enhancers_ensembl": 79.5,
    "demo_coding_vs_intergenomic_seqs": 91.3,
    "demo_human_or_worm": 97.0,
    "human_enhancers_cohn": 74.3,
    "human_enhancers_ensembl": 89.9,
    "human_ensembl_regulatory": 86.8,
    "human_ocr_ensembl": 82.3,
    "human_nontata_promoters": 94.0,
}
"""Accuracy of Caduceus pre-trained with MDLM on the Genomic Benchmarks."""


@dataclass(frozen=True)
class DNAScale(Scale):
    """The size of a table of genomes. settings: how Table 7 fine-tunes. files: whether its tasks are real ones."""

    settings: GlueSettings = field(default_factory=GlueSettings)
    files: bool = True


def measure_table6(workspace: Workspace, scale: DNAScale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """The bound of each model per base."""
    notes = [
        f"Every model reads {runs[0].tokens:,} bases in rows of {runs[0].recipe.data.length:,}. SEDD and MDLM have the "
        "trunk caduceus-ps, which reads both strands; no model is trained on reverse complements. Published: hg38."
    ]
    title = f"Mamba, Hyena, SEDD and MDLM on {protocol.name}"
    table = bounds_table(workspace, scale, protocol, runs, title, TABLE6_PUBLISHED, "hg38", notes)
    rows = {label: table.rows.get(label, {}) for label in TABLE6_PUBLISHED}
    return with_parameters(replace(table, rows=rows), workspace, runs)


# ---- Table 7 --------------------------------------------------------------------------------------------------------


def dna_tasks(scale: DNAScale) -> tuple[list[TaskData], list[str]]:
    """The tasks of a scale, and a sentence for each collection without files."""
    if not scale.files:
        return [motif_task()], ["The task motif is made up."]
    root = os.environ.get(DATA_VARIABLE)
    if root is None:
        raise UnmaskError(f"Table 7 needs its data; set {DATA_VARIABLE} to a folder that has dna/gue.")
    tasks: list[TaskData] = []
    missing = []
    for name, read in (("gue", read_gue), ("genomic_benchmarks", read_genomic_benchmarks)):
        found = read(Path(root, "dna", name), scale.settings.limit)
        tasks += found
        if not found:
            missing.append(f"{DATA_VARIABLE} has no tasks in dna/{name}.")
    if not tasks:
        raise UnmaskError(f"The folder '{root}' of {DATA_VARIABLE} has no tasks in dna/gue or dna/genomic_benchmarks.")
    return tasks, missing


def measure_table7(workspace: Workspace, scale: DNAScale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """The scores of each pre-trained model on the test part of every task."""
    tasks, missing = dna_tasks(scale)
    results = fine_tune_runs(workspace, runs, tasks, scale.settings)
    table = glue_table(results, [data.task for data in tasks], scale.settings, missing)
    published: Mapping[str, Mapping[str, float]] = {
        f"{name}, accuracy": {MDLM: value}
        for name, value in TABLE7_PUBLISHED.items()
        if f"{name}, accuracy" in table.rows and scale.settings.limit is None
    }
    notes = [
        f"Pre-trained on {protocol.name}; {MAMBA} is the causal trunk, {MLM} and {MDLM} share caduceus-ps. Matthews: "
        "correlation, times 100.",
        *table.notes,
    ]
    title = f"Classification of DNA after pre-training on {protocol.name}"
    return replace(table, title=title, published=published, notes=notes)


ADAMW: dict[str, Any] = {"name": "adamw", "betas": [0.9, 0.95], "clip": 1.0}
SMALL: dict[str, Any] = {
    "data": {"length": 1024},
    "optimizer": ADAMW | {"learning_rate": 0.004, "warmup": 60, "cooldown": 0.8, "ema": 0.99},
    "training": {"steps": 600, "batch_size": 64, "validate_every": 600, "validation_rows": 64, "save_every": 300},
}
"""39 million bases. At an assumed million bases per second for caduceus-ps, which scans four times, and 2.5 million for
the causal models, the twelve runs of Table 6 take about six minutes on one GPU."""
PUBLISHED_SIZE: dict[str, Any] = {
    "data": {"length": 1024},
    "optimizer": ADAMW | {"learning_rate": 0.008, "warmup": 500, "cooldown": 0.9, "ema": 0.999},
    "training": {
        "steps": 10_000,
        "batch_size": 1024,
        "validate_every": 1000,
        "validation_rows": 1024,
        "save_every": 1000,
    },
}
"""The size of the published Caduceus runs: 10,000 steps of a million bases."""
SMALLEST = without_model(TINY) | {"model": {"hidden_size": 32, "layers": 1}}
QUICK = GlueSettings(learning_rates=(3e-3,), seeds=2, epochs=4, limit=64)
FINE_TUNING = GlueSettings(learning_rates=(1e-3, 3e-3), seeds=3, epochs=3, batch_size=128)
TABLE6_SCALES: dict[ScaleName, DNAScale] = {
    "tiny": DNAScale("toy-dna", SMALLEST, seeds=3, documents=4),
    "small": DNAScale("chr20", SMALL, seeds=3, documents=6),
    "paper": DNAScale("hg38", PUBLISHED_SIZE, seeds=3),
}
TABLE7_SCALES: dict[ScaleName, DNAScale] = {
    "tiny": DNAScale("toy-dna", SMALLEST, settings=QUICK, files=False),
    "small": DNAScale("chr20", SMALL, settings=FINE_TUNING),
    "paper": DNAScale("hg38", PUBLISHED_SIZE, settings=replace(FINE_TUNING, seeds=5, epochs=10)),
}

EXPERIMENTS = (
    Experiment(
        "table6",
        "Perplexity of DNA per base: Mamba AR, Hyena AR, SEDD and MDLM",
        TABLE6_SCALES,
        partial(seeded_runs, TABLE6),
        measure_table6,
    ),
    Experiment(
        "table7",
        "Classification of DNA after pre-training as AR, MLM and MDLM",
        TABLE7_SCALES,
        lambda scale, protocol: seeded_runs(TABLE7, replace(scale, seeds=1), protocol),
        measure_table7,
    ),
)
