"""The validation of a run: the averaged weights, all processes together, the same draws every time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unmask.data.rows import Rows
from unmask.likelihood import BATCH_SIZE, Bound, Draws, NatTotals, accumulate_nats, device_of, eval_mode, summarise
from unmask.objectives.base import Noise
from unmask.objectives.planner import Planner
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.schedules import Schedule, low_discrepancy, van_der_corput
from unmask.training.distributed import Distributed
from unmask.training.memory import measure_or_explain
from unmask.training.step import TrainStep


@dataclass(frozen=True)
class PlannerMetrics:
    """Of `canvases`: the share of masked positions that the denoiser gets `right`; the areas under the curve of its
    planner and of its confidence; by how much the planner's is larger, canvas by canvas."""

    canvases: int
    right: float
    planner: float
    planner_stderr: float
    confidence: float
    confidence_stderr: float
    gain: float
    gain_stderr: float

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; None where one is not known."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return (
            f"of {self.right:.1%} right, AUC {self.planner:.4f} ± {self.planner_stderr:.4f} by the planner, "
            f"{self.confidence:.4f} ± {self.confidence_stderr:.4f} by confidence "
            f"({self.gain:+.4f} ± {self.gain_stderr:.4f})"
        )


def planner_metrics(
    denoiser: Any, objective: Planner, schedule: Schedule, rows: Rows, seed: int = 0, at_once: int = BATCH_SIZE
) -> PlannerMetrics:
    """Judge a planner on rows, each masked once; the masks depend on the seed and the row's index alone."""
    areas, right, masked = [], 0, 0
    with eval_mode(denoiser):
        for batch, noise in _masked_once(rows, seed, device_of(denoiser), at_once):
            corruption = objective.corrupt(batch, schedule, noise, denoiser.config)
            said = objective.predict(denoiser, batch, corruption)
            canvas = corruption.rows // batch.input_ids.shape[1]
            areas += _areas(canvas, said.right, said.log_odds, said.log_top)
            right, masked = right + int(said.right.sum()), masked + len(said.right)
    return _summary(torch.tensor(areas, dtype=torch.float64).view(-1, 2), right / max(1, masked))


def area(score: Tensor, right: Tensor) -> float:
    """The chance that one of the scores [N] where something is right is above one where it is not; NaN without both."""
    above = score[right][:, None] - score[~right]
    return float(((above > 0).double() + 0.5 * (above == 0)).mean())


def _masked_once(rows: Rows, seed: int, device: torch.device, at_once: int) -> Iterator[tuple[Batch, Noise]]:
    offset = uniform(seed, Purpose.OFFSET, step=torch.zeros(len(rows), dtype=torch.int64))
    t = low_discrepancy(offset, van_der_corput(len(rows)), len(rows))
    for index in torch.arange(len(rows)).split(at_once):
        table = rows[index.numpy()]
        batch = Batch.of(*map(torch.from_numpy, (table.input_ids, table.attention_mask, table.frozen)))
        noise = Noise.draw(seed, 0, index, t[index], rows.length)
        yield batch.to(device), Noise(noise.t.to(device), noise.u.to(device))


def _areas(canvas_N: Tensor, right_N: Tensor, *scores_N: Tensor) -> list[list[float]]:
    """The areas of all scores in every canvas in which there is something right and something wrong."""
    found = []
    for canvas in canvas_N.unique():
        here = canvas_N == canvas
        if 0 < int(right_N[here].sum()) < int(here.sum()):
            found.append([area(score[here], right_N[here]) for score in scores_N])
    return found


def _summary(areas_C2: Tensor, right: float) -> PlannerMetrics:
    planner, confidence = areas_C2.unbind(dim=1)
    figures = [figure for values in (planner, confidence, planner - confidence) for figure in _mean(values)]
    return PlannerMetrics(len(areas_C2), right, *figures)


def _mean(values_C: Tensor) -> tuple[float, float]:
    """The mean and its standard error."""
    error = float(values_C.std()) / math.sqrt(len(values_C)) if len(values_C) > 1 else math.nan
    return float(values_C.mean()), error


VALIDATION = Draws(offsets=8)


def measure(world: Distributed, stepper: TrainStep, rows: Rows) -> Bound:
    """The bound by the estimator that counts. Every process draws its share, and all get the same answer."""
    name, estimator = next(iter(stepper.objective.estimators().items()))
    draws = Draws(offsets=1) if estimator.exact else VALIDATION
    device = stepper.accelerator.device
    ask = partial(stepper.terms, estimator=estimator)
    corrupt = partial(stepper.corrupt, estimator=estimator)

    def answers(count: int) -> NatTotals:
        return accumulate_nats(ask, corrupt, rows, replace(draws, batch_size=count), device, share=world.share)

    with stepper.ema.applied(), eval_mode(stepper.denoiser):
        own = measure_or_explain(answers, draws.rows_per_call(rows.length, device), rows.length, stepper, world)
    found = NatTotals(world.sum_array(own.nats), world.sum_array(own.tokens))
    return summarise(name, found, rows, draws, estimator.exact)


def measure_foresight(world: Distributed, stepper: TrainStep, rows: Rows) -> PlannerMetrics | None:
    """How well the planner of a run foresees what its network gets right; None in a run that trains none.

    Every process asks its network about all rows.
    """
    if not isinstance(stepper.objective, Planner):
        return None
    with stepper.averaged() as denoiser:
        answers = partial(planner_metrics, denoiser, stepper.objective, stepper.schedule, rows, 0)
        return measure_or_explain(answers, BATCH_SIZE, rows.length, stepper, world)
