"""Variance of loss and gradient with the learned schedule on a trained model, and its effect on training.

    python benchmarks/learned_schedule.py variance
    python benchmarks/learned_schedule.py density --run runs/mine
    python benchmarks/learned_schedule.py training --seeds 3

`variance` trains a small model with the learned schedule (or takes the run folder `--run`), then draws times and masks
repeatedly for the same rows and weights. `density` shows the best densities for the loss, for its spread at a mask rate
and for the gradient. `training` trains models that differ only in schedule and seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoint import load_checkpoint
from unmask.config import Recipe, read_recipe
from unmask.data.split import prepare
from unmask.likelihood import AGREEMENT
from unmask.objectives.base import Noise
from unmask.objectives.subs import Subs
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.schedules import KNOTS, Cosine, Learned, LogLinear, Polynomial, Schedule, draw_times
from unmask.training import train
from unmask.training.schedule_learner import best_density

GOLDEN = (5**0.5 - 1) / 2
GROUPS = 8
"""A variance is the mean over this many groups of draws; its error is their spread."""
SETTINGS = (
    "data.tokenizer=byte",
    "model={name: dit, hidden_size: 64, layers: 2, heads: 2, dropout: 0.0}",
    "optimizer.learning_rate=0.005",
    "training.batch_size=64",
    "training.validation_rows=512",
)
"""So small that it learns from context within a thousand steps, so that nats per token depend on the mask rate."""
Times = Callable[[int, Tensor], Tensor]


def recipe_of(options: argparse.Namespace, seed: int, schedule: str) -> Recipe:
    """Read the demo recipe on bytes, with a single bound at the end."""
    last = (f"training.{key}={options.steps}" for key in ("steps", "validate_every", "save_every"))
    own = (f"data.length={options.length}", f"training.seed={seed}", f"schedule={schedule}")
    return read_recipe("demo", [*SETTINGS, *last, *own])


def stratified(step: int, index: Tensor) -> Tensor:
    """Draw the times [B] of training."""
    return draw_times(0, step, index, len(index))


def independent(step: int, index: Tensor) -> Tensor:
    """Draw independent times [B]."""
    return uniform(0, Purpose.TIME, step=step, sample=index + 1)


def moments(model: Any, batch: Batch, schedule: Schedule, times: Times, draws: int) -> dict[str, float]:
    """Return mean and variance of the loss per token, and the trace of its gradient's covariance, with errors."""
    losses: list[list[float]] = []
    traces: list[float] = []
    for group in range(GROUPS):
        first = group * draws // GROUPS
        steps = range(first, (group + 1) * draws // GROUPS)
        loss, gradients = zip(*(_draw(model, batch, schedule, times, step) for step in steps), strict=True)
        losses.append(list(loss))
        mean = torch.stack(gradients).mean(dim=0)
        traces.append(sum(float((one - mean).square().sum()) for one in gradients) / (len(gradients) - 1))
    everything = [loss for group in losses for loss in group]
    return {
        "mean": statistics.fmean(everything),
        "mean_stderr": statistics.stdev(everything) / math.sqrt(len(everything)),
        **_with_error("loss", [statistics.variance(group) for group in losses]),
        **_with_error("gradient", traces),
    }


def _draw(model: Any, batch: Batch, schedule: Schedule, times: Times, step: int) -> tuple[float, Tensor]:
    index = torch.arange(len(batch.input_ids), device=batch.input_ids.device)
    noise = Noise.draw(1, step, index, times(step, index), batch.input_ids.shape[1])
    model.zero_grad()
    terms = Subs().loss(model, batch, schedule, noise)
    (terms.loss / terms.count).backward()
    return float(terms.per_token), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _with_error(name: str, values: list[float]) -> dict[str, float]:
    error = statistics.stdev(values) / math.sqrt(len(values))
    return {name: statistics.fmean(values), f"{name}_stderr": error}


def measure_variance(run: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the moments of every schedule, with independent and with stratified times."""
    model, learned, batch = _open(run, options.rows, options.device)
    for times in (independent, stratified):
        for schedule in (LogLinear(), Cosine(), Polynomial(), learned):
            found = moments(model, batch, schedule, times, options.draws)
            yield {"schedule": schedule.name, "times": times.__name__, **found}


def _open(run: Path, rows: int, device: str) -> tuple[Any, Learned, Batch]:
    """Load the network of a run, its learned schedule and some held-out rows."""
    loaded = load_checkpoint(run)
    learned = loaded.config.schedule
    if not isinstance(learned, Learned):
        raise SystemExit(f"'{run}' was trained with the schedule {learned.name}; give a run of schedule=learned.")
    data = read_recipe(run / "recipe.yaml").data
    _, validation = prepare(data.source, data.tokenizer, data.validation, data.seed).rows(data.policy, data.length)
    chosen = validation.spread(rows)[:]
    ids, real = torch.from_numpy(chosen.input_ids), torch.from_numpy(chosen.attention_mask)
    return loaded.model.to(device), learned, Batch.of(ids, real).to(device)


def measure_density(run: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the best densities over v = sqrt(u) in eighths of (0, 1); a flat density is 1."""
    model, learned, batch = _open(run, 8 * options.draws, options.device)
    sums = torch.zeros(3, KNOTS, dtype=torch.float64)
    counts = torch.zeros(KNOTS, dtype=torch.float64)
    for row, v in enumerate(((torch.arange(len(batch.input_ids)) + 0.5) * GOLDEN % 1).tolist()):
        loss, square_of_gradient = _single(model, batch, row, v)
        interval = int(KNOTS * v)
        sums[:, interval] += torch.tensor([loss, loss**2, square_of_gradient], dtype=torch.float64)
        counts[interval] += 1
    spread = sums[1] - sums[0].square() / counts
    of = {"square of the loss": sums[1], "spread of the loss": spread, "square of the gradient": sums[2]}
    best = {name: learned.with_density(best_density(squares, counts).tolist()) for name, squares in of.items()}
    for name, schedule in {**best, "learned in training": learned}.items():
        eighths = torch.tensor((0.0, *schedule.times[7::8])).diff() * 8
        yield {"best for": name, "density": eighths.tolist()}


def _single(model: Any, batch: Batch, row: int, v: float) -> tuple[float, float]:
    """Return the loss of one sequence at the mask rate v^2 and the squared norm of its gradient."""
    one = Batch.of(batch.input_ids[row : row + 1], batch.attention_mask[row : row + 1])
    at = torch.tensor([v], device=one.input_ids.device)
    noise = Noise.draw(2, 0, torch.tensor([row], device=at.device), at, one.input_ids.shape[1])
    model.zero_grad()
    terms = Subs(weight="flat").loss(model, one, Polynomial(power=2), noise)
    terms.loss.backward()
    square = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    return float(terms.cross_entropy.sum()), square


def largest_disagreement(table: list[dict[str, Any]]) -> float:
    """Return the largest difference between the means of two schedules, in joint standard errors."""
    return max(
        abs(one["mean"] - other["mean"]) / math.hypot(one["mean_stderr"], other["mean_stderr"])
        for one in table
        for other in table
        if one is not other
    )


def print_variances(table: list[dict[str, Any]]) -> None:
    """Print variances, in brackets relative to log-linear with the same times."""
    print(f"{'times':<13}{'schedule':<12}{'nats/token':>20}{'variance of loss':>32}{'of gradient':>32}")
    for row in table:
        base = next(one for one in table if one["schedule"] == "loglinear" and one["times"] == row["times"])
        cells = [
            f"{row[name]:.3g} ± {row[name + '_stderr']:.1g} ({row[name] / base[name]:.2f})"
            for name in ("loss", "gradient")
        ]
        mean = f"{row['mean']:.4f} ± {row['mean_stderr']:.4f}"
        print(f"{row['times']:<13}{row['schedule']:<12}{mean:>20}{cells[0]:>32}{cells[1]:>32}")


def variance(options: argparse.Namespace, run: Path) -> dict[str, Any]:
    """Measure and print a table."""
    table = list(measure_variance(run, options))
    print_variances(table)
    disagreement = largest_disagreement(table)
    print(f"Means differ by at most {disagreement:.1f} joint standard errors (allowed: {AGREEMENT:.0f}).")
    return {"table": table, "largest_disagreement": disagreement}


def density(options: argparse.Namespace, run: Path) -> dict[str, Any]:
    """Measure and print a table."""
    table = list(measure_density(run, options))
    for row in table:
        print(f"{row['best for']:<24}" + "".join(f"{one:>6.2f}" for one in row["density"]))
    return {"table": table}


def with_run(measure: Callable[[argparse.Namespace, Path], dict[str, Any]], options: argparse.Namespace) -> Any:
    """Train if no run is given, then measure."""
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run"
        if not options.run:
            train(recipe_of(options, 0, "learned"), run)
        return measure(options, run)


def training(options: argparse.Namespace) -> dict[str, Any]:
    """Print the validation bound after training with each schedule and seed."""
    table = []
    for schedule in options.schedules:
        bits = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                result = train(recipe_of(options, seed, schedule), Path(folder) / "run")
            bits.append(result.bound.bits_per_token)
        table.append({"schedule": schedule, "steps": options.steps, "bits_per_token": bits})
        each = ", ".join(f"{one:.4f}" for one in bits)
        print(f"{schedule:<12}{options.steps:>6} steps{statistics.fmean(bits):>8.4f} bits/token ({each})", flush=True)
    return {"table": table}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("variance", "density", "training"))
    parser.add_argument("--steps", type=int, default=1000, help="training steps")
    parser.add_argument("--length", type=int, default=32, help="tokens per sequence")
    parser.add_argument("--run", type=Path, help="a run folder trained with schedule=learned")
    parser.add_argument("--rows", type=int, default=16, help="sequences in the batch")
    parser.add_argument("--draws", type=int, default=512, help="draws of times and masks for each schedule")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--schedules", nargs="+", default=["loglinear", "polynomial", "learned"])
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    verbs: dict[str, Callable[..., dict[str, Any]]] = {
        "variance": partial(with_run, variance),
        "density": partial(with_run, density),
        "training": training,
    }
    figures = verbs[options.what](options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
