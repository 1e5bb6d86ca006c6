"""The batches and noise of each training step, whatever the number of processes and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.data.rows import Integers, Rows, reverse_complement_rows
from unmask.errors import UnmaskError
from unmask.models.inference import pin_memory
from unmask.objectives.base import Corruption, Noise
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.schedules import draw_times

PREFETCH_STEPS = 3
WORKERS = 2


@dataclass(frozen=True)
class MicroBatch:
    """A part of a global batch with its noise, and the corrupted batch if it is computed ahead of the step.

    `padding` [B, L] is True after the end of a text; it is None if no such position counts.
    """

    batch: Batch
    noise: Noise
    corruption: Corruption | None = None
    padding: Tensor | None = None

    def to(self, device: torch.device) -> MicroBatch:
        """A copy on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> MicroBatch:
        """Apply a function to every tensor that the step reads; it does not read the noise if there is a corruption."""
        batch = self.batch.map(function)
        padding = None if self.padding is None else function(self.padding)
        if self.corruption is None:
            return MicroBatch(batch, Noise(function(self.noise.t), function(self.noise.u)), None, padding)
        return MicroBatch(batch, self.noise, self.corruption.map(function), padding)


@dataclass(frozen=True)
class DataFeed:
    """The micro-batches of a run. Index g of step s is sample s * batch_size + g, a number that determines all of it.

    `data_seed` orders the rows, `seed` draws times and masks. `places` are the indices into the global batch that this
    process works on, one tensor per micro-batch. `corrupt` masks batches ahead of their step; it is None if masking
    depends on earlier steps. `pin` puts tensors into page-locked memory. `independent_times` draws i.i.d. times.
    `reverse_complement` is the probability that a sample is read on the opposite strand, given by `complements` [V].
    """

    rows: Rows
    batch_size: int
    places: tuple[Tensor, ...]
    seed: int
    data_seed: int
    corrupt: Callable[[Batch, Noise], Corruption] | None = None
    pin: bool = False
    independent_times: bool = False
    reverse_complement: float = 0.0
    complements: Integers | None = None

    def steps(self, start: int, stop: int) -> Generator[list[MicroBatch], None, None]:
        """The micro-batches of steps start, ..., stop - 1, prepared in background threads."""
        with ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="unmask-feed") as pool:
            first = range(start, min(start + PREFETCH_STEPS, stop))
            pending = [pool.submit(self.micro_batches, step) for step in first]
            try:
                for step in range(start, stop):
                    ready = pending.pop(0).result()
                    if step + PREFETCH_STEPS < stop:
                        pending.append(pool.submit(self.micro_batches, step + PREFETCH_STEPS))
                    yield ready
            finally:
                pool.shutdown(cancel_futures=True)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """The micro-batches of one optimizer step, on the CPU."""
        micro_batches = []
        for place in self.places:
            sample = step * self.batch_size + place
            table = self.rows[self.rows.sample(self.data_seed, sample.numpy())]
            if self.complements is not None:
                chosen = uniform(self.data_seed, Purpose.STRAND, sample=sample) < self.reverse_complement
                table = reverse_complement_rows(table, chosen.numpy(), self.complements)
            t = draw_times(self.seed, step, place, self.batch_size, independent=self.independent_times)
            noise = Noise.draw(self.seed, step, sample, t, table.input_ids.shape[1])
            batch = Batch.of_rows(table)
            corruption = None if self.corrupt is None else self.corrupt(batch, noise)
            learned = (table.padding & table.attention_mask).any()
            padding = torch.from_numpy(table.padding) if learned else None
            micro_batch = MicroBatch(batch, noise, corruption, padding)
            micro_batches.append(micro_batch.map(pin_memory) if self.pin else micro_batch)
        return micro_batches

    def locate(self, step: int, index: int) -> tuple[int, int]:
        """The sample and its row of the data, from the index of the sample among those of this process in a step."""
        sample = step * self.batch_size + int(torch.cat(self.places)[index])
        return sample, int(self.rows.sample(self.data_seed, [sample])[0])


def split_batch(batch_size: int, accumulation: int, rank: int = 0, world_size: int = 1) -> tuple[Tensor, ...]:
    """The indices into the global batch of each micro-batch of one process."""
    if world_size * accumulation > batch_size:
        raise UnmaskError(
            f"A batch of {batch_size} cannot be cut into {world_size * accumulation} micro-batches; "
            "raise training.batch_size or lower training.accumulation."
        )
    own = torch.arange(batch_size).tensor_split(world_size)[rank]
    return own.tensor_split(accumulation)
