"""A bound of one draw a row, as `unmask eval` computes each of its draws, and the plain way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from unmask.benchmarks import train
from unmask.benchmarks.plain import plain_bound
from unmask.benchmarks.report import FORWARD_SHARE
from unmask.benchmarks.setup import Setup
from unmask.benchmarks.timing import Run, stopwatch
from unmask.likelihood import estimate_bound
from unmask.optimizers.base import AdamW, OptimizerComponent


@dataclass(frozen=True)
class Scoring:
    """The rows of `calls` batches are scored, each once. `optimizer` and `accumulation` are those of our training."""

    setup: Setup
    calls: int = 10
    optimizer: OptimizerComponent = field(default_factory=AdamW)
    accumulation: int = 1

    unit: ClassVar[str] = "call"

    @property
    def units(self) -> int:
        """Network calls of a run."""
        return self.calls

    @property
    def rows(self) -> int:
        """Rows of a run."""
        return self.calls * self.setup.batch

    @property
    def tokens(self) -> int:
        """Tokens of a run."""
        return self.rows * self.setup.length

    def flops(self, contender: str) -> float:
        """Operations of a run, counted as if the head saw predicted rows alone."""
        both_ways = self.training.flops(contender)
        return both_ways if contender == "training" else both_ways * FORWARD_SHARE

    def brief(self) -> Scoring:
        """Two calls."""
        return replace(self, calls=2)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        trained = {"optimizer": self.optimizer.model_dump(mode="json"), "accumulation": self.accumulation}
        return {**self.setup.as_dict(), "calls": self.calls, "training": trained}

    @property
    def training(self) -> train.Training:
        """Training on as many tokens, as the recipe does it."""
        return train.Training(self.setup, self.optimizer, self.calls, self.accumulation)


def prepare(work: Scoring) -> Run:
    """Our bound, by the estimator that counts."""
    setup = work.setup
    network, rows = setup.ready(setup.objective.causal), setup.rows(work.rows)
    estimator = next(iter(setup.objective.estimators().values()))

    def run() -> None:
        estimate_bound(network, estimator, setup.schedule, rows, offsets=1, batch_size=setup.batch)

    return stopwatch(run, setup.device)


def prepare_plain(work: Scoring) -> Run:
    """The plain bound of the same sizes."""
    setup = work.setup
    network, rows = setup.plain_network().eval(), torch.from_numpy(setup.ids(work.rows))
    rows = rows.pin_memory() if setup.device.type == "cuda" else rows
    return stopwatch(lambda: plain_bound(network, rows, setup.batch, setup.precision), setup.device)


def prepare_training(work: Scoring) -> Run:
    """Our own training on as many tokens, which evaluation is compared with."""
    return train.prepare(work.training)


CONTENDERS: dict[str, Callable[[Scoring], Run]] = {
    "unmask": prepare,
    "plain": prepare_plain,
    "training": prepare_training,
}
