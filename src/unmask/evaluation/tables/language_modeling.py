"""Tables of likelihoods: the baselines (Tables 1 and 2), zero-shot (Table 3), ablations (Table 8) and options."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from unmask.data.protocols import Protocol, get_protocol
from unmask.evaluation.tables.base import (
    BASELINES,
    PAPER,
    SMALL,
    TINY,
    Cell,
    Experiment,
    Run,
    Scale,
    ScaleName,
    Table,
    Unfinished,
    baseline_runs,
    bound_cell,
    bounds_by_label,
    bounds_table,
    by_label,
    error_note,
    finished,
    merge,
    seeded_runs,
    units,
    with_parameters,
    without_model,
)
from unmask.evaluation.tables.workspace import Workspace
from unmask.likelihood import Bound

STDLIB = Scale("stdlib", TINY, documents=6)
WIKI = Scale("wiki", merge(SMALL, {"data": {"length": 512}, "training": {"batch_size": 64}}), seeds=2)


# ---- the baselines: Tables 1 and 2 -----------------------------------------------------------------------------------

LM1B_PUBLISHED = {"AR": 22.32, "D3PM": 76.90, "SEDD": 32.79, "MDLM": 27.04}
OWT_PUBLISHED = {"AR": 17.54, "SEDD": 24.10, "MDLM": 23.21}


def compare_baselines(
    name: str, published: Mapping[str, float], published_on: str, small: Scale, paper: Scale
) -> Experiment:
    """An experiment that compares all baselines by their bound."""
    note = (
        "Equal parameters, optimiser and predicted tokens: AR predicts every token of a row and takes half of the "
        f"steps. Published: perplexities of the paper's models on {published_on}."
    )

    def measure(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
        title = f"AR, D3PM, SEDD and MDLM on {protocol.name}"
        return bounds_table(workspace, scale, protocol, runs, title, published, published_on, [note])

    return Experiment(
        name,
        f"AR, D3PM, SEDD and MDLM side by side; in the paper on {published_on}",
        {"tiny": STDLIB, "small": small, "paper": paper},
        partial(baseline_runs, BASELINES),
        measure,
    )


TABLE1 = compare_baselines("table1", LM1B_PUBLISHED, "lm1b", Scale("text8-74m", SMALL, seeds=2), Scale("lm1b", PAPER))
TABLE2 = compare_baselines("table2", OWT_PUBLISHED, "openwebtext", WIKI, Scale("openwebtext", PAPER))


# ---- zero-shot: Table 3 ----------------------------------------------------------------------------------------------

TABLE3_SETS = ("ptb", "wikitext-103-raw", "lm1b", "lambada", "ag_news", "pubmed", "arxiv")
TABLE3_PUBLISHED = {
    "AR": (82.05, 25.75, 51.25, 51.28, 52.09, 49.01, 41.73),
    "SEDD": (100.09, 34.28, 68.20, 49.86, 62.09, 44.53, 38.48),
    "MDLM": (95.26, 32.83, 67.01, 47.52, 61.15, 41.89, 37.37),
}
ZERO_SHOT_SETS = {
    "stdlib": ["functions"],
    "wiki": ["ptb", "wikitext-2", "lambada", "ag_news", "pubmedqa", "scitldr"],
    "openwebtext": list(TABLE3_SETS),
}
"""The data sets of Table 3 by the protocol of a scale."""


def measure_table3(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Perplexity of models trained on one protocol on the test parts of others."""
    sets = ZERO_SHOT_SETS[scale.protocol]
    for name in sets:
        get_protocol(name).locate("test")  # before hours of training
    rows: dict[str, dict[str, Cell | str]] = {}
    notes = [error_note(scale)]
    for name in sets:
        other = get_protocol(name)
        if other.stand_in:
            notes.append(f"{name} stands in for {other.stand_in}.")
        for label, bounds in bounds_by_label(workspace, scale, other, runs).items():
            row = rows.setdefault(label, {})
            if bounds:
                row[name] = bound_cell(bounds, "perplexity")
    published = {
        label: {name: figure for name, figure in zip(TABLE3_SETS, figures, strict=True) if name in sets}
        for label, figures in TABLE3_PUBLISHED.items()
    }
    if any(published.values()):
        notes.append("The published models were trained on OpenWebText.")
    comparable = protocol.name == "openwebtext"
    title = f"Zero-shot perplexity of models trained on {protocol.name}"
    return Table(title, sets, rows, published, notes, comparable, bars=True, axes=("", "perplexity"))


TABLE3 = Experiment(
    "table3",
    "Zero-shot perplexity of AR, SEDD and MDLM",
    {"tiny": Scale("stdlib", TINY, documents=40), "small": WIKI, "paper": Scale("openwebtext", PAPER)},
    partial(baseline_runs, TABLE3_PUBLISHED),
    measure_table3,
)


# ---- ablations: Table 8 ----------------------------------------------------------------------------------------------

STEPS = 1000
ABLATIONS: dict[str, dict[str, Any]] = {
    "MDLM": {"objective": "subs"},
    "w/o continuous time": {"objective": {"name": "subs", "steps": STEPS}},
    "& w/o carry-over": {"objective": {"name": "d3pm", "steps": STEPS, "zero_masking": True}},
    "& w/o zero-masking": {"objective": {"name": "d3pm", "steps": STEPS}},
}
"""The rows of Table 8."""
TABLE8_PUBLISHED = dict(zip(ABLATIONS, (27.04, 27.19, 28.56, 28.51), strict=True))
EVALUATION_SEEDS = 5


def measure_table8(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """The ablations, each evaluated with several seeds."""
    columns = units(protocol)
    rows: dict[str, dict[str, Cell | str]] = {}

    def evaluate(run: Run) -> list[Bound]:
        calls = [partial(workspace.bound, run, protocol, scale.documents, seed) for seed in range(EVALUATION_SEEDS)]
        bounds = finished(calls)
        if len(bounds) < EVALUATION_SEEDS:
            raise Unfinished(f"{run.title} is not evaluated with all seeds.")
        return bounds

    for label, seeds in by_label(runs).items():
        rows[label] = {}
        try:
            bounds = finished(partial(evaluate, run) for run in seeds)
        except Unfinished:
            continue
        for column, unit in columns.items():
            values = [[getattr(bound, unit) for bound in some] for some in bounds]
            means = [statistics.fmean(some) for some in values]
            errors = {"evaluation": statistics.fmean(map(statistics.stdev, values))}
            if len(means) > 1:
                errors["seeds"] = statistics.stdev(means)
            rows[label][column] = Cell(statistics.fmean(means), errors, bound=True)
    seeds_note = f", ± over {scale.seeds} training seeds" if scale.seeds > 1 else ""
    notes = [
        f"± standard deviation over {EVALUATION_SEEDS} evaluation seeds{seeds_note}. Published: LM1B.",
        "Rows after the first are bounds of the process with 1,000 steps.",
    ]
    published = {label: {"perplexity": value} for label, value in TABLE8_PUBLISHED.items()}
    comparable = protocol.name == "lm1b"
    return Table(f"Ablations of MDLM on {protocol.name}", list(columns), rows, published, notes, comparable)


TABLE8 = Experiment(
    "table8",
    "MDLM without continuous time, carry-over and zero-masking",
    {
        "tiny": Scale("stdlib", TINY, seeds=2, documents=6),
        "small": Scale("text8-74m", SMALL, seeds=3),
        "paper": Scale("lm1b", PAPER, seeds=2),
    },
    partial(seeded_runs, ABLATIONS),
    measure_table8,
)


# ---- what changed besides the objective ------------------------------------------------------------------------------

ENGINEERING: dict[str, dict[str, Any]] = {
    "all of them": {},
    "bytes instead of BPE": {"data": {"tokenizer": {"name": "byte"}}},
    "learned instead of rotary positions": {"model": {"learned_positions": True}},
    "i.i.d. instead of low-discrepancy t": {"training": {"times": "iid"}},
    "none of them": {
        "data": {"tokenizer": {"name": "byte"}},
        "model": {"learned_positions": True},
        "training": {"times": "iid"},
    },
}
"""What MDLM changed besides the objective, each undone alone and all together."""
BPE_SIZE = 1024
"""Vocabulary of `engineering` where the protocol has characters or bytes."""


def engineering_runs(scale: Scale, protocol: Protocol) -> list[Run]:
    """MDLM and D3PM with and without what was changed besides the objective.

    A protocol of characters or bytes gets a small BPE vocabulary, trained on its text.
    """
    coarse = protocol.tokenizer["name"] in ("byte", "char")
    shared = merge(scale.recipe, {"data": {"tokenizer": {"name": "bpe", "vocab_size": BPE_SIZE}}} if coarse else {})
    rows = {
        f"{model}, {label}": merge(BASELINES[model], change)
        for model in ("MDLM", "D3PM")
        for label, change in ENGINEERING.items()
    }
    return seeded_runs(rows, replace(scale, recipe=shared), protocol)


def measure_engineering(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Bits per byte, which tokenizers share, of every run."""
    rows: dict[str, dict[str, Cell | str]] = {
        label: {"bits per byte": bound_cell(bounds, "bits_per_byte")} if bounds else {}
        for label, bounds in bounds_by_label(workspace, scale, protocol, runs).items()
    }
    best = {model: rows[f"{model}, all of them"].get("bits per byte") for model in ("MDLM", "D3PM")}
    for label, row in rows.items():
        here, there = row.get("bits per byte"), best[label.partition(",")[0]]
        if not isinstance(here, Cell) or not isinstance(there, Cell):
            continue
        errors = {
            name: math.hypot(here.errors[name], there.errors[name]) for name in ("mc", "seeds") if name in here.errors
        }
        row["difference"] = Cell(here.value - there.value, errors) if here is not there else "-"
    tokenizer = runs[0].recipe.data.tokenizer.model_dump()
    notes = [
        f"Rows of {runs[0].recipe.data.length:,} tokens, equal steps and batches; the tokenizer is "
        f"{tokenizer.get('path', tokenizer['name'])}. A row of bytes covers less text, as it did in the original D3PM. "
        "Difference: to the row with all of them, ± Monte-Carlo error"
        f"{', ± over training seeds' if scale.seeds > 1 else ''}.",
        error_note(scale),
    ]
    return Table(
        f"Tokenizer, positions and times on {protocol.name}", ["bits per byte", "difference"], rows, notes=notes
    )


CHANGES = Experiment(
    "engineering",
    "What made the old D3PM weak: tokenizer, positions and times, for MDLM and D3PM",
    {"tiny": STDLIB, "small": WIKI, "paper": Scale("lm1b-packed", PAPER)},
    engineering_runs,
    measure_engineering,
)


# ---- trunks and options of MDLM --------------------------------------------------------------------------------------

BIMAMBA_SIZES: dict[str, dict[str, int]] = {
    "nano": {"hidden_size": 64, "layers": 4},
    "tiny": {"hidden_size": 352, "layers": 16},
    "small": {"hidden_size": 704, "layers": 24},
}
"""A bidirectional Mamba with about the parameters of the DiT of each scale, by the size that its recipe names."""


def trunk_runs(scale: Scale, protocol: Protocol) -> list[Run]:
    """MDLM with the DiT and with a bidirectional Mamba of twice the blocks and as many parameters."""
    dit = scale.recipe["model"]
    bimamba = {"name": "bimamba", "dropout": dit["dropout"], **BIMAMBA_SIZES[dit["size"]]}
    rows = {"MDLM": BASELINES["MDLM"] | {"model": dit}, "MDLM, bimamba": BASELINES["MDLM"] | {"model": bimamba}}
    return seeded_runs(rows, replace(scale, recipe=without_model(scale.recipe)), protocol)


def measure_trunks(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """The bound and the parameters of every trunk."""
    table = bounds_table(workspace, scale, protocol, runs, f"MDLM with two trunks on {protocol.name}")
    return with_parameters(table, workspace, runs)


TRUNKS = Experiment(
    "trunks",
    "MDLM with the DiT and with a bidirectional Mamba of as many parameters",
    {"tiny": STDLIB, "small": Scale("text8-74m", SMALL, seeds=2), "paper": Scale("lm1b", PAPER)},
    trunk_runs,
    measure_trunks,
)


def compare_variants(name: str, about: str, rows: Mapping[str, Mapping[str, Any]]) -> Experiment:
    """An experiment that compares variants of MDLM by their bound; `rows` are what they change in its recipe."""

    def measure(workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]) -> Table:
        return bounds_table(workspace, scale, protocol, runs, f"{about}, on {protocol.name}")

    scales: dict[ScaleName, Scale] = {
        "tiny": STDLIB,
        "small": Scale("text8-74m", SMALL, seeds=3),
        "paper": Scale("openwebtext", PAPER),
    }
    return Experiment(name, about, scales, partial(seeded_runs, rows), measure)


TIME_CONDITIONING = compare_variants(
    "time-conditioning",
    "MDLM with and without time conditioning",
    {"not conditioned": {}, "conditioned": {"model": {"conditioned": True}}},
)
WEIGHTS = compare_variants(
    "weights",
    "Training on the bound and on the flat cross-entropy",
    {
        "bound": {"objective": {"name": "subs", "weight": "bound"}},
        "flat": {"objective": {"name": "subs", "weight": "flat"}},
    },
)

EXPERIMENTS = (TABLE1, TABLE2, TABLE3, TABLE8, CHANGES, TRUNKS, TIME_CONDITIONING, WEIGHTS)
