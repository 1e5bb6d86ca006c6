"""Translation with the source frozen: MDLM and its encoder-decoder by the number of steps, and AR."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from unmask.data.protocols import Protocol
from unmask.evaluation.statistics import Estimate
from unmask.evaluation.tables.base import (
    SMALL,
    TINY,
    Cell,
    Curve,
    Experiment,
    Run,
    Scale,
    Table,
    Unfinished,
    by_label,
    finished,
    merge,
    seeded_runs,
    seeds_cell,
)
from unmask.evaluation.tables.workspace import Workspace
from unmask.evaluation.translation import measure, read_pairs, translate

MASKED: dict[str, Any] = {"model": {"absolute_positions": True}, "objective": {"name": "subs", "weight": "flat"}}
MODELS: dict[str, dict[str, Any]] = {
    "MDLM": MASKED,
    "MDLM encoder-decoder": merge(MASKED, {"model": {"name": "encoder-decoder"}}),
    "AR": {
        "model": {"name": "causal"},
        "objective": "ar",
        "data": {"policy": {"name": "prompted", "supervised_eos": False}},
    },
}
STEPS = {"1 step": 1, "4 steps": 4, "16 steps": 16, "one token per call": None}
COLUMNS = {"BLEU": "bleu", "chrF": "chrf", "length": "length_ratio", "calls": "calls", "seconds": "seconds"}
PARAMETERS = "millions"


def measure_translation(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """BLEU and chrF of MDLM for several numbers of steps, with one network or two, and of AR."""
    rows: dict[str, dict[str, Cell | str]] = {}
    found: dict[str, list[dict[str, Cell]]] = {}
    for label, seeds in by_label(runs).items():
        found[label] = []
        for words, steps in [("", None)] if label == "AR" else STEPS.items():
            row = rows.setdefault(f"{label}, {words}" if words else label, {})
            with suppress(Unfinished):
                figures = finished(partial(_figures, workspace, run, protocol, scale.documents, steps) for run in seeds)
                cells = {column: _cell([one[name] for one in figures]) for column, name in COLUMNS.items()}
                cells[PARAMETERS] = workspace.count_parameters(seeds[0])
                row |= cells
                found[label].append(cells)
    errors = f"± standard deviation over {scale.seeds} training seeds" if scale.seeds > 1 else "95% bootstrap interval"
    return Table(
        f"Translation of {protocol.name}",
        [*COLUMNS, PARAMETERS],
        rows,
        notes=[
            f"{errors}. Equal optimiser, steps and batches. The encoder-decoder encodes a source once. Greedy tokens, "
            "MDLM by confidence. The model chooses the length, shown as a ratio of words to the reference; calls and "
            "seconds are per sentence, parameters in millions.",
        ],
        curves=[
            Curve.of(label, [cells["calls"].value for cells in some], [cells["BLEU"] for cells in some])
            for label, some in found.items()
        ],
        axes=("network calls per sentence", "BLEU"),
        log_x=True,
    )


def _figures(
    workspace: Workspace, run: Run, protocol: Protocol, count: int | None, steps: int | None
) -> dict[str, Estimate]:
    def compute() -> dict[str, Any]:
        lm = workspace.load(run)
        pairs = read_pairs(lm, protocol.name, count=count)
        done = translate(lm, [source for source, _ in pairs], steps)
        return {name: one.as_dict() for name, one in measure(done, [target for _, target in pairs]).items()}

    inputs = {"run": run.folder, "protocol": protocol.name, "pairs": count, "steps": steps}
    kept = workspace.measure(f"translation-{run.folder}", compute, of=[run], alone=True, **inputs)
    return {name: Estimate(**one) for name, one in kept.items()}


def _cell(seeds: Sequence[Estimate]) -> Cell:
    """The mean over training seeds with their spread, or the interval of a single one."""
    return seeds_cell([one.value for one in seeds]) if len(seeds) > 1 else Cell.of(seeds[0])


EXPERIMENTS = (
    Experiment(
        "translation",
        "Translation with the source frozen by MDLM, its encoder-decoder and AR: BLEU and chrF by number of steps",
        {
            "tiny": Scale(
                "toy-translation", merge(TINY, {"data": {"length": 16}, "training": {"steps": 200}}), documents=40
            ),
            "small": Scale(
                "multi30k", merge(SMALL, {"model": {"dropout": 0.2}, "training": {"validate_every": 500}}), seeds=2
            ),
        },
        partial(seeded_runs, MODELS),
        measure_translation,
        translates=True,
    ),
)
