"""Validation of the EMA weights during training: the bound, the metrics of a planner, and samples."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.likelihood import BATCH_SIZE, Bound, Draws, NatTotals, accumulate_nats, eval_mode, summarise
from unmask.models.inference import device_of
from unmask.objectives.base import Noise
from unmask.objectives.planner import Planner
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.schedules import Schedule, low_discrepancy, van_der_corput
from unmask.training.memory import measure_or_explain

if TYPE_CHECKING:
    from unmask.checkpoint import CheckpointConfig
    from unmask.data.rows import Rows
    from unmask.training.distributed import Distributed
    from unmask.training.step import TrainStep

VALIDATION = Draws(offsets=8)
SAMPLE_STEPS = 64
"""The most network calls per sample."""


def measure_bound(distributed: Distributed, train_step: TrainStep, rows: Rows) -> Bound:
    """The bound of the EMA weights by the objective's first estimator, with the same draws every time.

    Each process evaluates its share of the rows; all get the same result.
    """
    name, estimator = next(iter(train_step.objective.estimators().items()))
    draws = Draws(offsets=1) if estimator.exact else VALIDATION
    device = train_step.accelerator.device
    rows_per_call = draws.rows_per_call(rows.length, device)

    def measure(batch_size: int) -> NatTotals:
        return accumulate_nats(
            partial(train_step.terms, estimator=estimator),
            partial(train_step.corrupt, estimator=estimator),
            rows,
            replace(draws, batch_size=batch_size),
            device,
            share=(distributed.rank, distributed.world_size),
            denominator=estimator.denominator,
        )

    with train_step.ema.applied(), eval_mode(train_step.denoiser):
        own = measure_or_explain(measure, rows_per_call, rows.length, train_step, distributed)
    sums = distributed.sum({"nats": torch.from_numpy(own.nats), "tokens": torch.from_numpy(own.tokens)})
    total = NatTotals(sums["nats"].numpy(), sums["tokens"].numpy(), own.denominator)
    return summarise(name, total, rows, draws, estimator.exact)


def generate_samples(
    train_step: TrainStep, tokenizer: Any, config: CheckpointConfig, count: int, seed: int
) -> list[str]:
    """Texts generated with the EMA weights; they depend on the weights and the seed alone.

    A masked model generates whole rows, an autoregressive model their first `SAMPLE_STEPS` tokens. All processes must
    take part. Torch's generator is not used.
    """
    from unmask.pipeline import build_pipeline

    with train_step.averaged() as denoiser, eval_mode(denoiser):
        lm = build_pipeline(denoiser, tokenizer, config)
        length, steps = (min(SAMPLE_STEPS, lm.row_length), None) if lm.causal else (lm.row_length, SAMPLE_STEPS)
        return lm.generate(count, length=length, steps=steps, seed=seed)


@dataclass(frozen=True)
class PlannerMetrics:
    """How well a planner finds the predictions that are right, compared with the denoiser's confidence.

    `right`: share of masked positions that the denoiser predicts right. `planner`, `confidence`: areas under the ROC
    curve, averaged over `canvases`. `gain`: the mean of their difference.
    """

    canvases: int
    right: float
    planner: float
    planner_stderr: float
    confidence: float
    confidence_stderr: float
    gain: float
    gain_stderr: float

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; unknown ones are None."""
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return (
            f"of {self.right:.1%} right, AUC {self.planner:.4f} ± {self.planner_stderr:.4f} by the planner, "
            f"{self.confidence:.4f} ± {self.confidence_stderr:.4f} by confidence "
            f"({self.gain:+.4f} ± {self.gain_stderr:.4f})"
        )


def measure_planner(distributed: Distributed, train_step: TrainStep, rows: Rows) -> PlannerMetrics | None:
    """The metrics of the planner that a run trains, or None. Each process evaluates all rows."""
    if not isinstance(train_step.objective, Planner):
        return None
    with train_step.averaged() as denoiser:
        measure = partial(planner_metrics, denoiser, train_step.objective, train_step.schedule, rows)
        return measure_or_explain(measure, BATCH_SIZE, rows.length, train_step, distributed)


def planner_metrics(
    denoiser: Any, objective: Planner, schedule: Schedule, rows: Rows, batch_size: int = BATCH_SIZE
) -> PlannerMetrics:
    """Evaluate a planner on rows, each masked once. The masks are the same every time, whatever the batch size."""
    device = device_of(denoiser)
    offset = uniform(0, Purpose.OFFSET, step=torch.zeros(len(rows), dtype=torch.int64))
    t = low_discrepancy(offset, van_der_corput(len(rows)), len(rows))
    areas, right, masked = [], 0, 0
    with eval_mode(denoiser):
        for index in torch.arange(len(rows)).split(batch_size):
            table = rows[index.numpy()]
            batch = Batch.of_rows(table).to(device)
            noise = Noise.draw(0, 0, index, t[index], rows.length)
            noise = Noise(noise.t.to(device), noise.u.to(device))
            corruption = objective.corrupt(batch, schedule, noise, denoiser.config)
            found = objective.predict(denoiser, batch, corruption)
            row_N = corruption.rows // batch.input_ids.shape[1]
            for row in row_N.unique():
                here = row_N == row
                right_here = found.right[here]
                if 0 < int(right_here.sum()) < len(right_here):
                    areas.append([auc(score[here], right_here) for score in (found.log_odds, found.log_top)])
            right, masked = right + int(found.right.sum()), masked + len(found.right)
    planner, confidence = torch.tensor(areas, dtype=torch.float64).view(-1, 2).unbind(dim=1)
    figures = [figure for values in (planner, confidence, planner - confidence) for figure in _mean(values)]
    return PlannerMetrics(len(areas), right / max(1, masked), *figures)


def auc(score: Tensor, right: Tensor) -> float:
    """The probability that the score [N] of a right prediction exceeds that of a wrong one; NaN without both."""
    above = score[right][:, None] - score[~right]
    return float(((above > 0).double() + 0.5 * (above == 0)).mean())


def _mean(values_C: Tensor) -> tuple[float, float]:
    """The mean and its standard error."""
    error = float(values_C.std()) / math.sqrt(len(values_C)) if len(values_C) > 1 else math.nan
    return float(values_C.mean()), error
