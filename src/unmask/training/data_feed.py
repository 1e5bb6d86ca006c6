"""Which rows and which noise a training step sees: a function of the step, whatever the processes and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.data.rows import Rows
from unmask.errors import UnmaskError
from unmask.models.inference import pin_memory
from unmask.objectives.base import Corruption, Noise
from unmask.process import Batch
from unmask.schedules import draw_times

AHEAD = 3
"""Steps whose batches are made while the current one runs."""
WORKERS = 2

Corrupt = Callable[[Batch, Noise], Corruption]


@dataclass(frozen=True)
class MicroBatch:
    """A part of a global batch with its noise, and what the noise makes of it where that is known ahead."""

    batch: Batch
    noise: Noise
    corruption: Corruption | None = None

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> MicroBatch:
        """The same with every tensor put through a function; noise that has done its work is left as it is."""
        batch, noise, corruption = self.batch.map(function), self.noise, self.corruption
        if corruption is None:
            return MicroBatch(batch, Noise(function(noise.t), function(noise.u)))
        return MicroBatch(batch, noise, corruption.map(function))


@dataclass(frozen=True)
class DataFeed:
    """The batches of a run. Sample g of step s is global sample s * batch_size + g, and all follows from that number.

    `data_seed` orders the rows, `seed` draws times and masks. `parts` are the places of the global batch that this
    process works on, one tensor a micro-batch. `corrupt` is how noise masks a batch, None where that depends on how far
    the run is. With `pin` the tensors lie where a GPU can fetch them by itself.
    """

    rows: Rows
    batch_size: int
    parts: tuple[Tensor, ...]
    seed: int
    data_seed: int
    corrupt: Corrupt | None = None
    pin: bool = False

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """All of one optimiser step, on the CPU."""
        return [self._micro_batch(step, part) for part in self.parts]

    def samples(self, step: int, places: Sequence[int]) -> list[int]:
        """The global sample indices of places among this process's own samples of a step."""
        own = torch.cat(self.parts)
        return [step * self.batch_size + int(own[place]) for place in places]

    def row(self, sample: int) -> int:
        """The row of the table that a global sample is."""
        return int(self.rows.sample(self.data_seed, [sample])[0])

    def steps(self, start: int, stop: int) -> Generator[list[MicroBatch], None, None]:
        """The micro-batches of steps start, ..., stop - 1, made in threads of their own."""
        with ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="unmask-feed") as pool:
            coming = [pool.submit(self.micro_batches, step) for step in range(start, min(start + AHEAD, stop))]
            try:
                for step in range(start, stop):
                    ready = coming.pop(0).result()
                    if step + AHEAD < stop:
                        coming.append(pool.submit(self.micro_batches, step + AHEAD))
                    yield ready
            finally:
                pool.shutdown(cancel_futures=True)

    def _micro_batch(self, step: int, place: Tensor) -> MicroBatch:
        sample = step * self.batch_size + place
        table = self.rows[self.rows.sample(self.data_seed, sample.numpy())]
        t = draw_times(self.seed, step, place, self.batch_size)
        noise = Noise.draw(self.seed, step, sample, t, table.input_ids.shape[1])
        batch = Batch.of(*(torch.from_numpy(x) for x in (table.input_ids, table.attention_mask, table.frozen)))
        corruption = None if self.corrupt is None else self.corrupt(batch, noise)
        made = MicroBatch(batch, noise, corruption)
        return made.map(pin_memory) if self.pin else made


def parts_of(batch_size: int, accumulation: int, process: int = 0, processes: int = 1) -> tuple[Tensor, ...]:
    """The places of the global batch that one of several processes works on, cut into `accumulation` micro-batches."""
    if processes * accumulation > batch_size:
        raise UnmaskError(
            f"A batch of {batch_size} cannot be cut into {processes * accumulation} micro-batches; "
            "raise training.batch_size or lower training.accumulation."
        )
    own = torch.arange(batch_size).tensor_split(processes)[process]
    return own.tensor_split(accumulation)
