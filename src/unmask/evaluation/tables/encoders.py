"""Encoders that become generators (Table 4): GLUE, the bound and generated texts before and after MDLM fine-tuning."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from unmask.data.glue import BINARY, TASKS, Examples, Task, TaskData, find_tasks, glue_folder, read_task
from unmask.data.protocols import BERT as BERT_TOKENS
from unmask.data.protocols import DATA_VARIABLE, PACKED, Protocol
from unmask.evaluation.glue import (
    AVERAGE,
    GlueResult,
    GlueSettings,
    evaluate_glue,
    glue_table,
)
from unmask.evaluation.tables.base import (
    TINY,
    Cell,
    Experiment,
    Run,
    Scale,
    ScaleName,
    Table,
    Unfinished,
    bound_cell,
    make_run,
    merge,
    units,
    without_model,
)
from unmask.evaluation.tables.sampling import cells_of, judged_cells, judged_data
from unmask.evaluation.tables.workspace import Workspace
from unmask.pipeline import load

AR, BERT, MDLM = "AR", "BERT", "BERT + MDLM"
PUBLISHED: dict[str, tuple[float, ...]] = {
    AR: (80.94, 80.78, 86.98, 86.16, 90.14, 33.43, 84.32, 83.88, 47.29, 74.88),
    BERT: (84.43, 85.35, 88.41, 90.46, 92.20, 54.81, 88.41, 89.16, 61.37, 81.62),
    MDLM: (84.76, 85.07, 88.49, 90.30, 92.20, 57.69, 87.48, 90.53, 62.09, 82.06),
}
"""The scores of Table 4 in the order of `TASKS`, then their average."""
GENERATED = ("judge perplexity", "entropy", "repetition")
TOY = Task("toy", ("sentence",), "label", BINARY, ("accuracy",))
FIVE = ("SST-2", "CoLA", "STS-B", "MRPC", "RTE")


@dataclass(frozen=True)
class GlueScale(Scale):
    """The size of Table 4.

    recipe: shared by AR and BERT, which are trained from scratch. fine_tuning: what MDLM fine-tuning changes in it.
    tasks: of GLUE; if none are named and there are no files, a made-up task is used. settings: how they are fine-tuned.
    """

    fine_tuning: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    settings: GlueSettings = field(default_factory=GlueSettings)


# ---- runs -----------------------------------------------------------------------------------------------------------


def table4_runs(scale: GlueScale, protocol: Protocol) -> list[Run]:
    """AR and BERT of equal width, depth and training tokens, and BERT fine-tuned with the bound of masked diffusion."""
    ar = make_run(AR, protocol, scale.recipe, {"model": {"name": "causal"}, "objective": "ar"})
    bert = make_run(BERT, protocol, scale.recipe, {"model": {"name": "encoder"}, "objective": "mlm"})
    start = {"model": {"name": "checkpoint", "path": bert.folder}, "objective": "subs"}
    mdlm = make_run(MDLM, protocol, without_model(scale.recipe), scale.fine_tuning, start)
    return [ar, bert, replace(mdlm, start=bert)]


# ---- tasks ----------------------------------------------------------------------------------------------------------


def toy_task() -> TaskData:
    """Made-up words whose label is whether one of them has the letter z."""
    random = Random(0)
    examples = []
    for _ in range(128):
        letters = random.choices("abcdefgh ", k=random.randint(8, 24))
        label = random.randrange(2)
        if label:
            letters[random.randrange(len(letters))] = "z"
        examples.append((("".join(letters),), float(label)))
    train, dev = (Examples(*map(list, zip(*part, strict=True))) for part in (examples[:64], examples[64:]))  # type: ignore[arg-type]
    return TaskData(TOY, train, (dev,))


def table4_tasks(scale: GlueScale) -> tuple[list[TaskData], list[str]]:
    """The tasks of a scale whose files are there, and a sentence for each of the others."""
    if not scale.tasks and not Path(os.environ.get(DATA_VARIABLE, ""), "glue").is_dir():
        return [toy_task()], [
            f"The task toy is made up; set {DATA_VARIABLE} to a folder that has glue/SST-2 and so on."
        ]
    folder = glue_folder(None)
    found, missing = find_tasks([TASKS[name] for name in scale.tasks or FIVE], folder)
    return [read_task(task, folder, scale.settings.limit) for task in found], missing


# ---- the table ------------------------------------------------------------------------------------------------------


def measure_table4(workspace: Workspace, scale: GlueScale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """GLUE, the bound on the test part, and generated texts under the AR model as the judge."""
    tasks, missing = table4_tasks(scale)
    judge = runs[0]
    results = fine_tune_runs(workspace, runs, tasks, scale.settings)
    likelihoods: dict[str, dict[str, Cell | str]] = {}
    generated: dict[str, dict[str, Cell | str]] = {}
    parameters: dict[str, Cell | str] = {}
    for run in runs:
        with suppress(Unfinished):
            parameters[run.label] = workspace.count_parameters(run)
        with suppress(Unfinished):
            bound = workspace.bound(run, protocol, scale.documents)
            for column, unit in units(protocol).items():
                likelihoods.setdefault(f"{column}, {protocol.name}", {})[run.label] = bound_cell([bound], unit)
        with suppress(Unfinished):
            cells = judged_cells(workspace, run, judge, scale.samples)
            for column in GENERATED:
                generated.setdefault(f"samples, {column}", {})[run.label] = cells.get(column, "-")
    glue = glue_table(results, [data.task for data in tasks], scale.settings, missing)
    data: dict[str, Cell | str] = {}
    with suppress(Unfinished):
        data = cells_of(judged_data(workspace, judge, protocol, scale.samples))
    of_data = ", ".join(f"{column} {data[column]}" for column in GENERATED if column in data)
    notes = [
        f"AR and BERT have the same width and depth and read {judge.tokens:,} tokens each; AR has an output layer of "
        "its own, BERT shares it with the embedding. Perplexity: an upper bound for BERT, which is not trained for "
        "high mask rates, and for BERT + MDLM, ± Monte-Carlo error; ± data error over documents. Samples: "
        f"{scale.samples} texts, judged by the AR model, so AR is judged by itself; 95% bootstrap intervals."
        f"{f' Of test rows: {of_data}.' if data else ''}",
        *glue.notes,
    ]
    rows = {**glue.rows, **likelihoods, **generated, "parameters, millions": parameters}
    published = published_scores(glue.rows) if scale.settings.limit is None else {}
    if published:
        notes.append("Published: Table 4 of the paper, models of 110 million parameters pre-trained on C4.")
    return replace(
        glue,
        title=f"GLUE before and after MDLM fine-tuning, trained on {protocol.name}",
        rows=rows,
        published=published,
        notes=notes,
        bar_rows=list(glue.rows),
    )


def fine_tune_runs(
    workspace: Workspace, runs: Sequence[Run], tasks: Sequence[TaskData], settings: GlueSettings
) -> list[GlueResult]:
    """The scores of runs on all tasks, under their labels."""
    results = []
    for run in runs:
        with suppress(Unfinished):
            lm = load(workspace.train(run), device=workspace.device, dtype="float32")
            found = evaluate_glue(lm, run.folder, tasks, settings, workspace)
            results += [replace(one, checkpoint=run.label) for one in found]
    return results


def published_scores(rows: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The published scores of the rows that are shown; the average only if it is over all of them."""
    labels = [f"{task.name}, {score}" for task in TASKS.values() for score in task.scores]
    shown = [*labels, AVERAGE] if all(label in rows for label in labels) else labels
    return {
        label: {column: figures[place] for column, figures in PUBLISHED.items()}
        for place, label in enumerate(shown)
        if label in rows
    }


TOKENS: dict[str, Any] = {"data": {"tokenizer": BERT_TOKENS, "policy": PACKED, "length": 126}}
"""Rows of 126 tokens, which are 128 with the two special tokens of BERT."""
MDLM_TRAINING: dict[str, Any] = {
    "optimizer": {"learning_rate": 5e-5, "warmup": 2500, "cooldown": 0.0},
    "training": {"steps": 5000, "batch_size": 512, "validate_every": 1000, "save_every": 1000},
}
"""MDLM fine-tuning as in the paper."""
OPTIMIZER: dict[str, Any] = {
    "name": "adamw",
    "learning_rate": 5e-4,
    "betas": [0.9, 0.98],
    "weight_decay": 0.01,
    "warmup": 5000,
    "cooldown": 0.8,
    "ema": 0.999,
}
SCALES: dict[ScaleName, GlueScale] = {
    "tiny": GlueScale(
        "stdlib",
        without_model(TINY) | {"model": {"hidden_size": 64, "layers": 2, "heads": 2, "dropout": 0.0}},
        documents=6,
        samples=8,
        fine_tuning={"optimizer": {"learning_rate": 1e-3}, "training": {"steps": 60}},
        settings=GlueSettings(learning_rates=(1e-3,), seeds=2, epochs=2, limit=64),
    ),
    "small": GlueScale(
        "wiki",
        merge(
            TOKENS,
            {
                "model": {"hidden_size": 512, "layers": 4, "heads": 8, "dropout": 0.1},
                "optimizer": {**OPTIMIZER, "warmup": 500},
                "training": {
                    "steps": 5000,
                    "batch_size": 256,
                    "validate_every": 5000,
                    "validation_rows": 2048,
                    "save_every": 1000,
                },
            },
        ),
        fine_tuning={
            "optimizer": {"learning_rate": 2e-4, "warmup": 100, "cooldown": 0.5},
            "training": {"steps": 1000, "batch_size": 512, "validate_every": 1000, "save_every": 500},
        },
        samples=256,
        tasks=FIVE,
        settings=GlueSettings(learning_rates=(1e-4,), batch_size=32),
    ),
    "paper": GlueScale(
        "c4",
        merge(
            TOKENS,
            {
                "model": {"hidden_size": 768, "layers": 12, "heads": 12, "dropout": 0.1},
                "optimizer": OPTIMIZER,
                "training": {
                    "steps": 70_000,
                    "batch_size": 4096,
                    "validate_every": 5000,
                    "validation_rows": 2048,
                    "save_every": 5000,
                },
            },
        ),
        documents=1000,
        fine_tuning=MDLM_TRAINING,
        samples=256,
        tasks=tuple(TASKS),
        settings=GlueSettings(learning_rates=(2e-5,), seeds=5),
    ),
}

EXPERIMENTS = (
    Experiment(
        "table4",
        "GLUE, bound and samples of AR, BERT and BERT after MDLM fine-tuning",
        SCALES,
        table4_runs,
        measure_table4,
    ),
)
