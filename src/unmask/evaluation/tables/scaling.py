"""Experiments over sizes: compute-optimal scaling of MDLM and AR, and both when text is scarce and repeated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from unmask.data.protocols import Protocol
from unmask.evaluation.statistics import quantile_interval
from unmask.evaluation.tables.base import (
    BASELINES,
    SMALL,
    TINY,
    Cell,
    Curve,
    Experiment,
    Run,
    Scale,
    Table,
    Unfinished,
    bound_cell,
    by_label,
    error_note,
    finished,
    make_run,
    merge,
    units,
)
from unmask.evaluation.tables.workspace import Workspace, training_flops
from unmask.likelihood import Bound
from unmask.training.callbacks import read_log
from unmask.training.checkpointing import find_latest, read_trainer_state

Values = npt.NDArray[np.float64]

COMPARED = ("MDLM", "AR")
RESAMPLES = 1000


def train_for(steps: int) -> dict[str, Any]:
    """Part of a recipe: this many steps, validated at the end."""
    return {"training": {"steps": steps, "validate_every": steps, "save_every": max(1, steps // 4)}}


# ---- compute-optimal scaling ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SizesScale(Scale):
    """widths: of the networks, all with as many layers. budgets: floating-point operations of a training run."""

    widths: tuple[int, ...]
    layers: int
    budgets: tuple[float, ...]


def scaling_runs(scale: SizesScale, protocol: Protocol) -> list[Run]:
    """Every model, budget, size and training seed; the budget decides the number of steps."""
    runs = []
    for model in COMPARED:
        for budget in scale.budgets:
            for width in scale.widths:
                size = {"model": {"hidden_size": width, "layers": scale.layers, "heads": max(1, width // 32)}}
                recipe = merge(scale.recipe, BASELINES[model], size)
                step = training_flops(make_run("", protocol, recipe, {"training": {"steps": 1}}).recipe)
                steps = max(2, round(budget / step))
                label = f"{model}, width {width}, {budget:.0e} FLOPs"
                runs += [make_run(label, protocol, recipe, train_for(steps), seed=seed) for seed in range(scale.seeds)]
    return runs


def optimum(log_sizes: Values, losses: Values) -> tuple[float, float]:
    """The lowest point (size, loss) of a parabola through losses by the logarithm of the size.

    If it is not between the sizes that were tried, the best of them is returned.
    """
    curvature, slope, offset = np.polyfit(log_sizes, losses, 2)
    if curvature > 0:
        lowest = -slope / (2 * curvature)
        if log_sizes[0] <= lowest <= log_sizes[-1]:
            return float(lowest), float(offset - slope**2 / (4 * curvature))
    best = int(losses.argmin())
    return float(log_sizes[best]), float(losses[best])


def fit_power_law(compute: Values, losses: Values) -> tuple[float, float]:
    """(log A, alpha) of losses = A compute^-alpha by least squares of the logarithms."""
    slope, offset = np.polyfit(np.log(compute), np.log(losses), 1)
    return float(offset), float(-slope)


def fit_scaling(log_sizes: Values, budgets: Values, losses: Values, errors: Values) -> dict[str, Any]:
    """Compute-optimal losses and sizes and power laws of two models, and the ratio of their compute at equal loss.

    losses, errors: [models, budgets, sizes]. The ratio is None if the loss of a model does not fall with compute. The
    intervals are those of refits to losses with random errors.
    """
    generator = np.random.Generator(np.random.Philox(0))
    noise = generator.standard_normal((RESAMPLES, *losses.shape)) * errors
    fits = [_fit(log_sizes, budgets, losses + drawn) for drawn in [np.zeros_like(losses), *noise]]

    def estimate(name: str, *place: int) -> Cell:
        value, *values = (float(np.asarray(fit[name])[place]) for fit in fits)
        return Cell(value, interval=quantile_interval(values))

    models, places = range(len(losses)), range(len(budgets))
    return {
        "optimal": [[estimate("optimal", model, place) for place in places] for model in models],
        "sizes": [[estimate("sizes", model, place) for place in places] for model in models],
        "alpha": [estimate("alpha", model) for model in models],
        "ratio": None if min(fits[0]["alpha"]) <= 0 else estimate("ratio"),
    }


def _fit(log_sizes: Values, budgets: Values, losses: Values) -> dict[str, Any]:
    lowest = np.array([[optimum(log_sizes, by_size) for by_size in model] for model in losses])
    laws = [fit_power_law(budgets, model) for model in lowest[..., 1]]
    # The loss in the middle of the range that both laws cover, and the compute that each needs for it.
    middle = math.exp((math.log(budgets[0]) + math.log(budgets[-1])) / 2)
    loss = math.exp(sum(a - alpha * math.log(middle) for a, alpha in laws) / len(laws))
    first, second = ((a - math.log(loss)) / alpha for a, alpha in laws)
    ratio = math.exp(min(max(first - second, -700.0), 700.0))
    sizes = np.exp(lowest[..., 0])
    return {"optimal": lowest[..., 1], "sizes": sizes, "alpha": [alpha for _, alpha in laws], "ratio": ratio}


def measure_scaling(workspace: Workspace, scale: SizesScale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Bits per byte of every size and budget, the compute-optimal ones, and their fits."""
    budgets, widths = scale.budgets, scale.widths
    bounds = workspace.bounds(runs, protocol, scale.documents)
    if len(bounds) < len(runs):
        return _unfinished_scaling(workspace, scale, protocol, runs)
    shape = (len(COMPARED), len(budgets), len(widths), scale.seeds)
    by_seed = np.array([bound.bits_per_byte for bound in bounds]).reshape(shape)
    losses = by_seed.mean(axis=-1)
    # The data error is left out: all runs are evaluated on the same documents.
    variance = (np.array([bound.error("bits_per_byte") or 0.0 for bound in bounds]).reshape(shape) ** 2).mean(axis=-1)
    if scale.seeds > 1:  # the Monte-Carlo error is a part of the spread over seeds, pooled over sizes and budgets
        variance = np.maximum(variance, by_seed.var(axis=-1, ddof=1).mean(axis=(1, 2), keepdims=True))
    errors = np.sqrt(variance / scale.seeds)
    parameters = np.array([scale.layers * 12 * width**2 for width in widths], dtype=np.float64)
    fitted = fit_scaling(np.log(parameters), np.array(budgets), losses, errors)
    rows: dict[str, dict[str, Cell | str]] = {}
    curves, by_size, at_ends = [], [], []
    for number, model in enumerate(COMPARED):
        optimal = fitted["optimal"][number]
        curves.append(Curve.of(model, list(budgets), optimal))
        for place, budget in enumerate(budgets):
            label = f"{model}, {budget:.0e} FLOPs"
            cells = [Cell(*one) for one in zip(losses[number, place], _spreads(by_seed[number, place]), strict=True)]
            size = fitted["sizes"][number][place]
            rows[label] = {
                **{f"width {width}": cell for width, cell in zip(widths, cells, strict=True)},
                "optimal": optimal[place],
                "parameters, millions": Cell(size.value / 1e6, interval=tuple(end / 1e6 for end in size.interval)),
            }
            if any(math.isclose(size.value, end) for end in (parameters[0], parameters[-1])):
                at_ends.append(label)
            by_size.append(Curve.of(label, list(parameters / 1e6), cells, "bits per byte", "parameters in millions"))
    exponents = ", ".join(f"{model} {fitted['alpha'][number]}" for number, model in enumerate(COMPARED))
    covered = " and the spread over training seeds, pooled" if scale.seeds > 1 else "; --seeds 2 adds that of training"
    notes = [
        f"Bits per byte{f', ± standard deviation over {scale.seeds} training seeds' if scale.seeds > 1 else ''}. "
        "Optimal: the lowest point of a parabola in log size, and the parameters without embeddings there. The 95% "
        f"intervals are those of refits and cover the Monte-Carlo error of the bounds{covered}.",
        *([f"No minimum between the sizes, so the best of them is shown: {'; '.join(at_ends)}."] if at_ends else []),
        f"Fits: the loss is proportional to compute^(-alpha), with alpha: {exponents}.",
        "There is no ratio of compute, since the loss of a model does not fall with it."
        if fitted["ratio"] is None
        else f"At equal bits per byte MDLM needs {fitted['ratio']} times the compute of AR, by both laws in the middle "
        "of the budgets.",
    ]
    columns = [*(f"width {width}" for width in widths), "optimal", "parameters, millions"]
    return Table(
        f"Scaling on {protocol.name}",
        columns,
        rows,
        notes=notes,
        curves=[*curves, *by_size],
        axes=("training compute in FLOPs", "bits per byte at the optimal size"),
        log_x=True,
    )


def _unfinished_scaling(workspace: Workspace, scale: SizesScale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """The bits per byte that are there, without fits."""
    rows: dict[str, dict[str, Cell | str]] = {}
    for label, seeds in by_label(runs).items():
        model, width, budget = label.split(", ")
        row = rows.setdefault(f"{model}, {budget}", {})
        with suppress(Unfinished):
            row[width] = bound_cell(workspace.bounds(seeds, protocol, scale.documents), "bits_per_byte")
    columns = [f"width {width}" for width in scale.widths]
    return Table(f"Scaling on {protocol.name}", columns, rows, notes=[f"Bits per byte. {error_note(scale)}"])


def _spreads(by_seed: Values) -> list[dict[str, float]]:
    """The standard deviation over seeds of each row of [sizes, seeds]."""
    if by_seed.shape[1] == 1:
        return [{} for _ in by_seed]
    return [{"seeds": float(spread)} for spread in by_seed.std(axis=1, ddof=1)]


# ---- scarce data ----------------------------------------------------------------------------------------------------

HALF_WIDTH = "half the width"
TUNED: dict[str, Mapping[str, Any]] = {
    "no regularisation": {},
    "dropout 0.1": {"model": {"dropout": 0.1}, "optimizer": {"weight_decay": 0.03}},
    "dropout 0.3": {"model": {"dropout": 0.3}, "optimizer": {"weight_decay": 0.1}},
    HALF_WIDTH: {"model": {"dropout": 0.1}, "optimizer": {"weight_decay": 0.03}},
}
"""Options tried for both models at every length of training; the best validation counts."""
LENGTHS = (1 / 64, 1 / 16, 1 / 4, 1)
"""Lengths of training as shares of the recipe's steps, each with a learning rate that falls to its end."""


@dataclass(frozen=True, kw_only=True)
class ScarceScale(Scale):
    """characters: of unique text to train on. tuned, lengths: what is tried of `TUNED` and `LENGTHS`."""

    characters: tuple[int, ...]
    tuned: tuple[str, ...] = tuple(TUNED)
    lengths: tuple[float, ...] = LENGTHS


def scarce_runs(scale: ScarceScale, protocol: Protocol) -> list[Run]:
    """Both models on every amount of text, with every option and length of training."""
    settings = product(COMPARED, scale.characters, scale.tuned, scale.lengths)
    return [_scarce_run(scale, protocol, *setting) for setting in settings]


def _scarce_run(scale: ScarceScale, protocol: Protocol, model: str, characters: int, tuned: str, length: float) -> Run:
    steps = max(1, round(scale.recipe["training"]["steps"] * length))
    limited = {"data": {"source": {"characters": characters}}}
    recipe = merge(scale.recipe, BASELINES[model], TUNED[tuned], limited, train_for(steps))
    if tuned == HALF_WIDTH:
        size = recipe["model"]
        half = {name: max(1, size[name] // 2) for name in ("hidden_size", "heads")}
        recipe = merge(recipe, {"model": half})
    return make_run(f"{model}, {characters:,} characters, {tuned}, {steps:,} steps", protocol, recipe)


def measure_scarce(workspace: Workspace, scale: ScarceScale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """The best validation of each model by the amount of unique text and by epochs, and the test of that network."""
    (column, unit), *_ = reversed(units(protocol).items())
    rows: dict[str, dict[str, Cell | str]] = {}
    best_of_all, by_epochs = [], []
    for model in COMPARED:
        best_of_model = {}
        for characters in scale.characters:
            best, complete = [], True
            for length in scale.lengths:
                tried = {tuned: _scarce_run(scale, protocol, model, characters, tuned, length) for tuned in scale.tuned}
                with suppress(Unfinished):
                    found = finished(partial(_validated, workspace, tuned, run) for tuned, run in tried.items())
                    complete &= len(found) == len(tried)
                    best.append(min(found, key=lambda one: one[-1].value))
            row = rows.setdefault(f"{model}, {characters:,} characters", {})
            if not best:
                continue
            tuned, run, epochs, validation = min(best, key=lambda one: one[-1].value)
            row |= {
                "best validation": validation,
                "epochs": Cell(epochs),
                "tuned": tuned,
                "longest": best[-1][-1],
            }
            if complete and len(best) == len(scale.lengths):  # else the best network may be another one
                with suppress(Unfinished):
                    row[f"test: {column}"] = bound_cell([workspace.bound(run, protocol, scale.documents)], unit)
            best_of_model[characters] = validation
            x, y = [one[-2] for one in best], [one[-1] for one in best]
            by_epochs.append(Curve.of(f"{model}, {characters:,}", x, y, axis="bits per token", x_axis="epochs"))
        best_of_all.append(Curve.of(model, list(best_of_model), list(best_of_model.values())))
    steps = ", ".join(f"{max(1, round(scale.recipe['training']['steps'] * length)):,}" for length in scale.lengths)
    notes = [
        f"Best validation: the lowest bits per token of networks trained for {steps} steps, each with "
        f"{', '.join(scale.tuned)}; {HALF_WIDTH} has dropout 0.1. AR takes as many steps as MDLM. Longest: the best of "
        "the longest training. Test: the network with the best validation.",
        error_note(scale),
    ]
    return Table(
        f"Masked diffusion and AR on repeated text ({protocol.name})",
        ["best validation", "epochs", "tuned", "longest", f"test: {column}"],
        rows,
        notes=notes,
        curves=[*best_of_all, *by_epochs],
        axes=("unique characters", "best bits per token"),
        log_x=True,
    )


def _validated(workspace: Workspace, tuned: str, run: Run) -> tuple[str, Run, float, Cell]:
    return tuned, run, *last_validation(workspace, run)


def last_validation(workspace: Workspace, run: Run) -> tuple[float, Cell]:
    """The epochs of a run, and bits per token of the validation at its end."""

    def compute() -> dict[str, Any]:
        path = workspace.train(run)
        latest = find_latest(path)
        assert latest is not None
        state = read_trainer_state(latest)
        record = next(record for record in reversed(read_log(path)) if "validation" in record)
        return {"epochs": state.samples / state.rows, "validation": record["validation"]}

    kept = workspace.measure(f"validation-{run.folder}", compute, of=[run])
    return kept["epochs"], bound_cell([Bound.from_dict(kept["validation"])], "bits_per_token")


EXPERIMENTS = (
    Experiment(
        "scaling",
        "Compute-optimal bits per byte of MDLM and AR: four sizes, three budgets",
        {
            "tiny": SizesScale(
                "stdlib", TINY, documents=4, widths=(16, 32, 48, 64), layers=2, budgets=(1e10, 2e10, 4e10)
            ),
            "small": SizesScale(
                "wiki",
                merge(
                    SMALL,
                    {
                        "data": {"tokenizer": {"name": "bpe", "vocab_size": 4096}, "length": 256},
                        "optimizer": {"warmup": 20},
                        "training": {"batch_size": 64},
                    },
                ),
                seeds=2,
                widths=(96, 160, 256, 384),
                layers=6,
                budgets=(3e14, 1e15, 3e15),
            ),
            "paper": SizesScale(
                "openwebtext",
                merge(SMALL, {"training": {"batch_size": 256}}),
                widths=(256, 384, 512, 768),
                layers=12,
                budgets=(1e18, 6e18, 3e19),
            ),
        },
        scaling_runs,
        measure_scaling,
    ),
    Experiment(
        "data-scarce",
        "MDLM and AR on few characters, repeated for many epochs",
        {
            "tiny": ScarceScale(
                "stdlib",
                TINY,
                documents=6,
                characters=(2_000, 8_000),
                tuned=("no regularisation", HALF_WIDTH),
                lengths=(1 / 4, 1),
            ),
            "small": ScarceScale(
                "text8-74m",
                merge(
                    SMALL,
                    {
                        "optimizer": {"warmup": 20},
                        "training": {"steps": 6400, "batch_size": 128, "validation_rows": 1024, "keep": 1},
                    },
                ),
                characters=(500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000),
            ),
        },
        scarce_runs,
        measure_scarce,
    ),
)
