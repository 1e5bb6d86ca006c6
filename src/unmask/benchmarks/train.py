"""Training as a user gets it (rows, noise, loss, optimiser, average of the weights), and the plain way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar

import torch

from unmask.benchmarks.plain import PlainTrainer
from unmask.benchmarks.setup import Setup
from unmask.benchmarks.timing import Run, stopwatch
from unmask.config import TrainingConfig
from unmask.optimizers.base import AdamW, OptimizerComponent
from unmask.training.data_feed import DataFeed, parts_of
from unmask.training.distributed import make_accelerator
from unmask.training.metrics import flops_per_token
from unmask.training.step import CALLS_BEFORE_RECORDING, TrainStep

ROWS_PER_BATCH = 4
"""Batches after which the synthetic rows come again."""
ENDLESS = 1_000_000
"""Steps of the run that is measured a little of: far from the end, where rates fall."""


@dataclass(frozen=True)
class Training:
    """What a run of some steps does."""

    setup: Setup
    optimizer: OptimizerComponent = field(default_factory=AdamW)
    steps: int = 10
    accumulation: int = 1

    unit: ClassVar[str] = "step"

    @property
    def units(self) -> int:
        """Steps of a run."""
        return self.steps

    @property
    def tokens(self) -> int:
        """Tokens of a run."""
        return self.steps * self.setup.batch * self.setup.length

    def flops(self, contender: str) -> float:
        """Operations of a run, counted as if the head saw predicted rows alone."""
        setup = self.setup
        return self.tokens * (flops_per_token(setup.config, setup.length, setup.objective, setup.schedule) or 0.0)

    def brief(self) -> Training:
        """Two steps, so that the optimiser has its moments beside activations; on a GPU until passes are recorded."""
        return replace(self, steps=CALLS_BEFORE_RECORDING + 2 if self.setup.device.type == "cuda" else 2)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        own = {"steps": self.steps, "accumulation": self.accumulation}
        return {**self.setup.as_dict(), "optimizer": self.optimizer.model_dump(mode="json"), **own}


def build(work: Training) -> tuple[TrainStep, DataFeed]:
    """The pair that `unmask train` works with."""
    setup = work.setup
    config = TrainingConfig(
        steps=ENDLESS,
        batch_size=setup.batch,
        accumulation=work.accumulation,
        precision="bf16" if setup.precision == torch.bfloat16 else "float32",
    )
    accelerator = make_accelerator(config, work.optimizer.clip)
    stepper = TrainStep(accelerator, setup.network(), setup.objective, setup.schedule, work.optimizer, config)
    feed = DataFeed(
        rows=setup.rows(ROWS_PER_BATCH * setup.batch),
        batch_size=setup.batch,
        parts=parts_of(setup.batch, work.accumulation),
        seed=0,
        data_seed=0,
        corrupt=stepper.corrupt_ahead,
        pin=setup.device.type == "cuda",
    )
    return stepper, feed


def prepare(work: Training) -> Run:
    """Our training; every run goes on where the last one stopped, with the batches that were made ahead."""
    stepper, feed = build(work)
    coming = enumerate(feed.steps(0, ENDLESS))

    def run() -> None:
        for step, micro_batches in islice(coming, work.steps):
            stepper.step(micro_batches, step)

    return stopwatch(run, work.setup.device)


def prepare_plain(work: Training) -> Run:
    """The plain training of the same sizes, always by AdamW."""
    setup = work.setup
    trainer = PlainTrainer(setup.plain_network(), setup.precision)
    table = torch.from_numpy(setup.ids(ROWS_PER_BATCH * setup.batch))
    batches = [batch.pin_memory() if setup.device.type == "cuda" else batch for batch in table.split(setup.batch)]

    def run() -> None:
        for step in range(work.steps):
            trainer.step(batches[step % ROWS_PER_BATCH].to(setup.device, non_blocking=True))

    return stopwatch(run, setup.device)


CONTENDERS: dict[str, Callable[[Training], Run]] = {"unmask": prepare, "plain": prepare_plain}
