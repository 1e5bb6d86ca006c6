"""A batch that does not fit into memory: what would, found by trying, in one sentence."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from unmask.errors import LoneError, UnmaskError, is_out_of_memory
from unmask.objectives.base import Noise
from unmask.process import Batch
from unmask.training.data_feed import MicroBatch
from unmask.training.distributed import Distributed
from unmask.training.step import TrainStep

T = TypeVar("T", Batch, Noise)
M = TypeVar("M")


def step_or_explain(stepper: TrainStep, micro_batches: Sequence[MicroBatch], step: int, world: Distributed) -> None:
    """One optimiser step. If it runs out of memory the run is over, and an `UnmaskError` says what would fit."""
    try:
        stepper.step(micro_batches, step)
        return
    except RuntimeError as error:
        if world.ended:
            raise SystemExit(2) from None
        if not is_out_of_memory(error):
            raise
    # The error is gone by now, and with it the frames that held the memory of the step.
    largest = max(micro_batches, key=_size)
    if world.processes > 1:
        raise _alone(stepper, largest, world)
    raise UnmaskError(_explain(stepper, largest, sum(map(_size, micro_batches))))


def measure_or_explain(
    measure: Callable[[int], M], count: int, length: int, stepper: TrainStep, world: Distributed
) -> M:
    """`measure(count)` of so many sequences at a time, or of half as many, and so on, where these do not fit.

    Several processes must do the same, so that they do not try; if nothing fits an `UnmaskError` says so.
    """
    while True:
        try:
            return measure(count)
        except RuntimeError as error:
            if world.ended:
                raise SystemExit(2) from None
            if not is_out_of_memory(error):
                raise
        if count == 1 or world.processes > 1:
            raise _unmeasured(stepper, count, length, world)
        _release(stepper)
        count //= 2


def accumulation_for(batch_size: int, largest: int) -> int:
    """The fewest micro-batches of at most `largest` sequences that a batch can be cut into."""
    return -(-batch_size // largest)


def largest_that_fits(stepper: TrainStep, micro_batch: MicroBatch) -> int:
    """How many sequences of a micro-batch that does not fit would, by bisection; 0 if not even one does.

    The optimiser steps as well: it makes its moments the first time, with the lone sequence that is tried before all
    others. So the weights are not to be used afterwards.
    """
    fits, too_many = 0, _size(micro_batch)
    while too_many - fits > 1:
        count = (fits + too_many) // 2 if fits else 1
        if _fits(stepper, MicroBatch(_first(micro_batch.batch, count), _first(micro_batch.noise, count))):
            fits = count
        else:
            too_many = count
    _release(stepper)
    return fits


def _fits(stepper: TrainStep, micro_batch: MicroBatch) -> bool:
    """Whether a step of such micro-batches has room. The gradient of one stays while the next is computed: two tell."""
    _release(stepper)
    try:
        stepper.gradients([micro_batch, micro_batch])
        stepper.optimizer.optimizer.step()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def _release(stepper: TrainStep) -> None:
    """Give back what an attempt has left behind."""
    stepper.let_go()
    gc.collect()
    torch.cuda.empty_cache()


def _explain(stepper: TrainStep, micro_batch: MicroBatch, batch_size: int) -> str:
    largest = largest_that_fits(stepper, micro_batch)
    if not largest:
        return _hopeless(stepper, micro_batch)
    return (
        f"{_too_much(stepper, micro_batch)}; the largest that does is {largest}, so train with "
        f"training.accumulation={accumulation_for(batch_size, largest)}, which keeps the batch of {batch_size}."
    )


def _alone(stepper: TrainStep, micro_batch: MicroBatch, world: Distributed) -> BaseException:
    """The others may be waiting for this process, so nothing can be tried: it ends, and the launcher ends them."""
    if not world.end():
        return SystemExit(2)
    if _size(micro_batch) == 1:
        return LoneError(_hopeless(stepper, micro_batch))
    return LoneError(
        f"{_too_much(stepper, micro_batch)} (process {world.process}); raise training.accumulation "
        f"(it is {stepper.accelerator.gradient_accumulation_steps}), which keeps the batch."
    )


def _unmeasured(stepper: TrainStep, count: int, length: int, world: Distributed) -> BaseException:
    what = f"{count} sequences of {length} tokens at a time" if count > 1 else f"one sequence of {length} tokens"
    words = (
        f"The validation of {what} does not fit into the memory of {_place(stepper)}; lower data.length or take a "
        "smaller model."
    )
    if world.processes == 1:
        return UnmaskError(words)
    return LoneError(words) if world.end() else SystemExit(2)


def _too_much(stepper: TrainStep, micro_batch: MicroBatch) -> str:
    count, length = micro_batch.batch.input_ids.shape
    return f"A micro-batch of {count} sequences of {length} tokens does not fit into the memory of {_place(stepper)}"


def _hopeless(stepper: TrainStep, micro_batch: MicroBatch) -> str:
    length = micro_batch.batch.input_ids.shape[1]
    return (
        f"Not even one sequence of {length} tokens fits into the memory of {_place(stepper)}; lower data.length, take "
        "a smaller model, or slice it over several processes with training.shard=true."
    )


def _place(stepper: TrainStep) -> str:
    device = stepper.accelerator.device
    return "this machine" if device.type == "cpu" else str(device)


def _size(micro_batch: MicroBatch) -> int:
    return len(micro_batch.batch.input_ids)


def _first(part: T, count: int) -> T:
    """The first sequences of a batch, or of its noise."""
    cut: dict[str, Any] = {name: value[:count] for name, value in vars(part).items() if isinstance(value, Tensor)}
    return replace(part, **cut)
