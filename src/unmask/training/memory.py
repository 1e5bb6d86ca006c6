"""Out-of-memory errors: find by trial what fits, and say so in one sentence."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from unmask.errors import LoneError, UnmaskError, is_out_of_memory
from unmask.objectives.base import Noise
from unmask.process import Batch
from unmask.training.data_feed import MicroBatch

if TYPE_CHECKING:
    from unmask.training.distributed import Distributed
    from unmask.training.step import TrainStep

T = TypeVar("T")
Part = TypeVar("Part", Batch, Noise)


def step_or_explain(
    train_step: TrainStep, micro_batches: Sequence[MicroBatch], step: int, distributed: Distributed
) -> None:
    """Take an optimizer step; if it runs out of memory, raise an `UnmaskError` that says what would fit."""
    try:
        train_step.step(micro_batches, step)
        return
    except RuntimeError as error:
        _raise_unless_out_of_memory(error, distributed)
    # here the error and the frames that hold the memory of the step are gone
    largest = max(micro_batches, key=lambda one: len(one.batch.input_ids))
    count, length = largest.batch.input_ids.shape
    place = _device_name(train_step)
    too_long = (
        f"Not even one sequence of {length} tokens fits into the memory of {place}; lower data.length, use a smaller "
        "model, or shard it over several processes with training.shard=true."
    )
    too_many = f"A micro-batch of {count} sequences of {length} tokens does not fit into the memory of {place}"
    if distributed.world_size > 1:  # nothing can be tried while other processes wait for this one
        accumulation = train_step.accelerator.gradient_accumulation_steps
        remedy = f"raise training.accumulation (it is {accumulation}), which keeps the batch"
        raise _failure(distributed, too_long if count == 1 else f"{too_many} (process {distributed.rank}); {remedy}.")
    fits = largest_that_fits(train_step, largest)
    if not fits:
        raise UnmaskError(too_long)
    batch_size = sum(len(one.batch.input_ids) for one in micro_batches)
    raise UnmaskError(
        f"{too_many}; the largest that does is {fits}, so train with "
        f"training.accumulation={-(-batch_size // fits)}, which keeps the batch of {batch_size}."
    )


def measure_or_explain(
    measure: Callable[[int], T], batch_size: int, length: int, train_step: TrainStep, distributed: Distributed
) -> T:
    """Call `measure(batch_size)`, halving the batch size until it fits; raise an `UnmaskError` if nothing does.

    Several processes do not try again, since they must stay in step.
    """
    while True:
        try:
            return measure(batch_size)
        except RuntimeError as error:
            _raise_unless_out_of_memory(error, distributed)
        if batch_size == 1 or distributed.world_size > 1:
            what = f"{batch_size} sequences" if batch_size > 1 else "one sequence"
            raise _failure(
                distributed,
                f"The validation of {what} of {length} tokens at a time does not fit into the memory of "
                f"{_device_name(train_step)}; lower data.length or use a smaller model.",
            )
        _free(train_step)
        batch_size //= 2


def largest_that_fits(train_step: TrainStep, micro_batch: MicroBatch) -> int:
    """The largest number of sequences of a micro-batch that fits, by bisection; 0 if not even one does.

    Each attempt takes an optimizer step, since the first step allocates the optimizer state. So the weights must not be
    used afterwards.
    """
    fits, too_many = 0, len(micro_batch.batch.input_ids)
    while too_many - fits > 1:
        count = (fits + too_many) // 2 if fits else 1
        if _fits(train_step, MicroBatch(_first(micro_batch.batch, count), _first(micro_batch.noise, count))):
            fits = count
        else:
            too_many = count
    _free(train_step)
    return fits


def _fits(train_step: TrainStep, micro_batch: MicroBatch) -> bool:
    """Try two micro-batches, since the gradient of the first one takes memory while the second one is computed."""
    _free(train_step)
    try:
        train_step.gradients([micro_batch, micro_batch])
        train_step.optimizer.optimizer.step()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def _raise_unless_out_of_memory(error: RuntimeError, distributed: Distributed) -> None:
    if distributed.has_failed:  # another process has failed and said why; this one lost its connection
        raise SystemExit(2) from None
    if not is_out_of_memory(error):
        raise error


def _failure(distributed: Distributed, message: str) -> BaseException:
    """The error to raise in this process; of several processes, only the first to fail says why."""
    if distributed.world_size == 1:
        return UnmaskError(message)
    return LoneError(message) if distributed.report_failure() else SystemExit(2)


def _free(train_step: TrainStep) -> None:
    train_step.release_memory()
    gc.collect()
    torch.cuda.empty_cache()


def _device_name(train_step: TrainStep) -> str:
    device = train_step.accelerator.device
    return "this machine" if device.type == "cpu" else str(device)


def _first(part: Part, count: int) -> Part:
    """The first sequences of a batch or of its noise."""
    tensors: dict[str, Any] = {name: value[:count] for name, value in vars(part).items() if isinstance(value, Tensor)}
    return replace(part, **tensors)
