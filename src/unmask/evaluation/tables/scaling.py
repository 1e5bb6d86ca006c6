"""Experiments over sizes: compute-optimal scaling of MDLM and AR, and both when text is scarce and repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unmask.data.protocols import Protocol
from unmask.evaluation.tables.base import (
    SMALL,
    TINY,
    Cell,
    Curve,
    Experiment,
    Run,
    Scale,
    Table,
    make_run,
    merge,
)
from unmask.evaluation.tables.language_modeling import BASELINES
from unmask.evaluation.tables.workspace import Workspace, training_flops

Values = npt.NDArray[np.float64]

COMPARED = ("MDLM", "AR")
RESAMPLES = 1000
EXAFLOP = 1e18

# ---- compute-optimal scaling ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SizesScale(Scale):
    """widths: of the networks, all with as many layers. budgets: floating-point operations of a training run."""

    widths: tuple[int, ...]
    layers: int
    budgets: tuple[float, ...]


def scaling_runs(scale: SizesScale, protocol: Protocol) -> list[Run]:
    """Every model, size and budget; the budget decides the number of steps."""
    runs = []
    for model in COMPARED:
        for budget in scale.budgets:
            for width in scale.widths:
                size = {"model": {"hidden_size": width, "layers": scale.layers, "heads": max(1, width // 32)}}
                recipe = merge(scale.recipe, BASELINES[model], size)
                step = training_flops(make_run("", protocol, recipe, {"training": {"steps": 1}}).recipe)
                steps = max(2, round(budget / step))
                schedule = {"training": {"steps": steps, "validate_every": steps, "save_every": max(1, steps // 4)}}
                runs.append(make_run(f"{model}, width {width}, {budget:.0e} FLOPs", protocol, recipe, schedule))
    return runs


def optimum(log_sizes: Values, losses: Values) -> tuple[float, float]:
    """The lowest point (size, loss) of a parabola through losses by the logarithm of the size.

    Without a minimum inside the sizes that were tried it is the best of them.
    """
    curvature, slope, offset = np.polyfit(log_sizes, losses, 2)
    best = int(losses.argmin())
    if curvature > 0:
        lowest = -slope / (2 * curvature)
        if log_sizes[0] <= lowest <= log_sizes[-1]:
            return float(lowest), float(offset - slope**2 / (4 * curvature))
    return float(log_sizes[best]), float(losses[best])


def fit_power_law(compute: Values, losses: Values) -> tuple[float, float]:
    """(log A, alpha) of losses = A compute^-alpha by least squares of the logarithms."""
    slope, offset = np.polyfit(np.log(compute), np.log(losses), 1)
    return float(offset), float(-slope)


def fit_scaling(log_sizes: Values, budgets: Values, losses: Values, errors: Values) -> dict[str, Any]:
    """Compute-optimal losses and power laws of two models, and the ratio of their compute at equal loss.

    There is no ratio (None) if the loss of one does not fall. losses, errors: [models, budgets, sizes]. The intervals
    are those of refits to losses drawn from their errors.
    """
    generator = np.random.Generator(np.random.Philox(0))
    noise = generator.standard_normal((RESAMPLES, *losses.shape)) * errors
    fits = [_fit(log_sizes, budgets, losses + drawn) for drawn in [np.zeros_like(losses), *noise]]

    def estimate(values: Sequence[float]) -> Cell:
        low, high = np.quantile(values[1:], [0.025, 0.975])
        return Cell(values[0], interval=(float(low), float(high)))

    return {
        "optimal": [
            [estimate([fit["optimal"][model][budget] for fit in fits]) for budget in range(len(budgets))]
            for model in range(len(losses))
        ],
        "alpha": [estimate([fit["alpha"][model] for fit in fits]) for model in range(len(losses))],
        "ratio": None if min(fits[0]["alpha"]) <= 0 else estimate([fit["ratio"] for fit in fits]),
    }


def _fit(log_sizes: Values, budgets: Values, losses: Values) -> dict[str, Any]:
    optimal = [[optimum(log_sizes, by_size)[1] for by_size in model] for model in losses]
    laws = [fit_power_law(budgets, np.array(model)) for model in optimal]
    # The loss in the middle of the range that both laws cover, and the compute that each needs for it.
    middle = math.exp((math.log(budgets[0]) + math.log(budgets[-1])) / 2)
    loss = math.exp(sum(a - alpha * math.log(middle) for a, alpha in laws) / len(laws))
    first, second = ((a - math.log(loss)) / alpha for a, alpha in laws)
    ratio = math.exp(min(max(first - second, -700.0), 700.0))
    return {"optimal": optimal, "alpha": [alpha for _, alpha in laws], "ratio": ratio}


def measure_scaling(workspace: Workspace, scale: SizesScale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """Bits per byte of every size and budget, the compute-optimal ones, and their fits."""
    budgets, widths = scale.budgets, scale.widths
    bounds = [workspace.bound(run, protocol, scale.documents) for run in runs]
    shape = (len(COMPARED), len(budgets), len(widths))
    losses = np.array([bound.bits_per_byte for bound in bounds]).reshape(shape)
    # The Monte-Carlo error alone: all runs are evaluated on the same documents, whose spread they share.
    errors = np.array([bound.error("bits_per_byte") or 0.0 for bound in bounds]).reshape(shape)
    parameters = np.array([scale.layers * 12 * width**2 for width in widths], dtype=np.float64)
    fitted = fit_scaling(np.log(parameters), np.array(budgets), losses, errors)
    rows: dict[str, dict[str, Cell | str]] = {}
    for number, model in enumerate(COMPARED):
        for place, budget in enumerate(budgets):
            cells = {f"width {width}": Cell(losses[number, place, i]) for i, width in enumerate(widths)}
            rows[f"{model}, {budget:.0e} FLOPs"] = {**cells, "optimal": fitted["optimal"][number][place]}
    exponents = ", ".join(f"{model} {fitted['alpha'][number]}" for number, model in enumerate(COMPARED))
    notes = [
        "Bits per byte. Optimal: the lowest point of a parabola in log size (95% interval from the errors of the "
        "bounds).",
        f"Fits: the loss is proportional to compute^(-alpha), with alpha: {exponents}.",
        "There is no ratio of compute: the loss of a model does not fall."
        if fitted["ratio"] is None
        else f"At equal bits per byte MDLM needs {fitted['ratio']} times the compute of AR, by both laws in the middle "
        "of the budgets.",
    ]
    curves = [
        Curve.of(model, [budget / EXAFLOP for budget in budgets], fitted["optimal"][number])
        for number, model in enumerate(COMPARED)
    ]
    columns = [*(f"width {width}" for width in widths), "optimal"]
    axes = ("training compute in 10^18 FLOPs", "bits per byte at the optimal size")
    return Table(f"Scaling on {protocol.name}", columns, rows, notes=notes, curves=curves, axes=axes, log_x=True)


# ---- scarce data ----------------------------------------------------------------------------------------------------

REGULARISED: dict[str, Mapping[str, Any]] = {
    "no regularisation": {},
    "dropout 0.1": {"model": {"dropout": 0.1}, "optimizer": {"weight_decay": 0.03}},
    "dropout 0.3": {"model": {"dropout": 0.3}, "optimizer": {"weight_decay": 0.1}},
}
"""Tried for both models; the best validation counts."""


@dataclass(frozen=True, kw_only=True)
class ScarceScale(Scale):
    """characters: of unique text to train on."""

    characters: tuple[int, ...]


def scarce_runs(scale: ScarceScale, protocol: Protocol) -> list[Run]:
    """Both models with every regularisation on every amount of text."""
    runs = []
    for model in COMPARED:
        for characters in scale.characters:
            for label, options in REGULARISED.items():
                limited = {"data": {"source": {"characters": characters}}}
                recipe = merge(scale.recipe, BASELINES[model], options, limited)
                runs.append(make_run(f"{model}, {characters:,} characters, {label}", protocol, recipe))
    return runs


def measure_scarce(workspace: Workspace, scale: ScarceScale, protocol: Protocol, runs: Sequence[Run]) -> Table:
    """The best validation of each model by the amount of unique text, and when it was reached."""
    found = {run.label: validations(workspace, run) for run in runs}
    rows: dict[str, dict[str, Cell | str]] = {}
    curves = []
    epochs = []
    length = scale.recipe.get("data", {}).get("length", protocol.length)
    batch = scale.recipe["training"]["batch_size"] * length
    for model in COMPARED:
        best_bits = []
        for characters in scale.characters:
            of_size = {label: found[f"{model}, {characters:,} characters, {label}"] for label in REGULARISED}
            label, points = min(of_size.items(), key=lambda item: min(item[1].values()))
            step, bits = min(points.items(), key=lambda item: item[1])
            rows[f"{model}, {characters:,} characters"] = {
                "best validation": Cell(bits, bound=model != "AR"),
                "epochs": Cell(step * batch / characters),
                "regularisation": label,
                "last validation": Cell(list(points.values())[-1], bound=model != "AR"),
            }
            best_bits.append(bits)
            passed = [at * batch / characters for at in points]
            epochs.append(
                Curve(f"{model}, {characters:,}", passed, list(points.values()), axis="bits per token", x_axis="epochs")
            )
        curves.append(Curve(model, list(scale.characters), best_bits))
    return Table(
        f"Masked diffusion and AR on repeated text ({protocol.name})",
        ["best validation", "epochs", "regularisation", "last validation"],
        rows,
        notes=["Bits per token on the validation part, during training; the best regularisation of each model."],
        curves=[*curves, *epochs],
        axes=("unique characters", "best bits per token"),
        log_x=True,
    )


def validations(workspace: Workspace, run: Run) -> dict[int, float]:
    """Bits per token of the validations of a run by step, from its log."""
    log = workspace.train(run) / "log.jsonl"
    records = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return {record["step"]: record["validation"]["bits_per_token"] for record in records if "validation" in record}


FREQUENT = {"training": {"validate_every": 250, "validation_rows": 1024, "keep_best": 0, "keep": 1}}
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
                merge(SMALL, {"data": {"length": 256}, "training": {"batch_size": 128}}),
                widths=(128, 192, 256, 384),
                layers=6,
                budgets=(2e16, 6e16, 2e17),
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
            "tiny": ScarceScale("stdlib", merge(TINY, {"training": {"validate_every": 20}}), characters=(4_000, 8_000)),
            "small": ScarceScale(
                "text8-74m",
                merge(SMALL, FREQUENT, {"training": {"steps": 6000}}),
                characters=(500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000),
            ),
        },
        scarce_runs,
        measure_scarce,
    ),
)
