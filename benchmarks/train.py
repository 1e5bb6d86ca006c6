"""Training as `unmask train` runs it (rows, noise, loss, optimizer, EMA), compared with the plain implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from unmask.config import TrainingConfig
from unmask.errors import UnmaskError
from unmask.training.data_feed import DataFeed, split_batch
from unmask.training.distributed import make_accelerator
from unmask.training.step import CALLS_BEFORE_CAPTURE, TrainStep

from .measure import Report, Run, compare, stopwatch
from .plain import PlainTrainer
from .setup import Workload

BATCHES = 4
"""Distinct batches; after them the synthetic rows repeat."""
TOTAL_STEPS = 1_000_000
"""Steps of the training run that is measured: so many that the learning rate does not decay."""


def check_training_device(device: torch.device) -> None:
    """Raise unless this is the device that training selects."""
    selected = "cuda" if torch.cuda.is_available() else "cpu"
    if device.type != selected or device.index:
        raise UnmaskError(
            f"Training cannot run on '{device}', because it takes the first device it sees; "
            "leave --device out and set CUDA_VISIBLE_DEVICES."
        )


def build_training(work: Workload) -> tuple[TrainStep, DataFeed]:
    """Build the training step and its data as `unmask train` does."""
    setup = work.setup
    config = TrainingConfig(
        steps=TOTAL_STEPS,
        batch_size=setup.batch,
        accumulation=work.accumulation,
        precision="bf16" if setup.precision == torch.bfloat16 else "float32",
    )
    accelerator = make_accelerator(config, work.optimizer.clip)
    train_step = TrainStep(accelerator, setup.network(), setup.objective, setup.schedule, work.optimizer, config)
    feed = DataFeed(
        rows=setup.rows(BATCHES * setup.batch),
        batch_size=setup.batch,
        places=split_batch(setup.batch, work.accumulation),
        seed=0,
        data_seed=0,
        corrupt=train_step.corrupt_ahead,
        pin=setup.device.type == "cuda",
    )
    return train_step, feed


def prepare_training(work: Workload) -> Run:
    """Prepare our training. Each run continues the previous one, with the batches that were prefetched."""
    train_step, feed = build_training(work)
    steps = enumerate(feed.steps(0, TOTAL_STEPS))

    def run() -> None:
        for step, micro_batches in islice(steps, work.count):
            train_step.step(micro_batches, step)

    return stopwatch(run, work.setup.device)


def prepare_plain_training(work: Workload) -> Run:
    """Prepare the plain training of the same sizes, with AdamW."""
    setup = work.setup
    trainer = PlainTrainer(setup.plain_network(), setup.precision)
    batches = setup.pinned_ids(BATCHES * setup.batch).split(setup.batch)

    def run() -> None:
        for step in range(work.count):
            trainer.step(batches[step % BATCHES].to(setup.device, non_blocking=True))

    return stopwatch(run, setup.device)


IMPLEMENTATIONS: dict[str, Callable[[Workload], Run]] = {"unmask": prepare_training, "plain": prepare_plain_training}


def compare_training(work: Workload, against: Sequence[str] = (), **options: Any) -> Report:
    """Measure our training and the implementations in `against`; see `measure.compare` for the options."""
    # Memory is measured over enough steps to include the optimizer's moments and, on a GPU, the recorded graphs.
    steps = CALLS_BEFORE_CAPTURE + 2 if work.setup.device.type == "cuda" else 2
    description = {
        **work.setup.as_dict(),
        "optimizer": work.optimizer.model_dump(mode="json"),
        "steps": work.count,
        "accumulation": work.accumulation,
    }
    prepare = {name: IMPLEMENTATIONS[name] for name in ("unmask", *against)}
    flops = dict.fromkeys(prepare, work.training_flops)
    return compare(work, prepare, flops, "step", description, replace(work, count=steps), **options)
