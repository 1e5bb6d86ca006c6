"""The processes of a run and what they tell each other. One process is a world of its own, in which nothing is sent.

What the hosts agree on (a stop, a finished corpus, an error) goes over a group of its own between CPUs, so no GPU ever
waits for it, and it may take as long as preparing a corpus takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor

from unmask.errors import UnmaskError

T = TypeVar("T")
Floats = npt.NDArray[np.float64]

PATIENCE = timedelta(days=2)
"""How long a host waits for another one: preparing a big corpus is done by one process of each machine."""


class World:
    """All processes of a run, as one of them sees it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.process = accelerator.process_index
        self.processes = accelerator.num_processes
        self.main = accelerator.is_main_process
        self._local_process = accelerator.local_process_index
        self._hosts = dist.new_group(backend="gloo", timeout=PATIENCE) if self.processes > 1 else None
        self._ballot: tuple[Tensor, Any] | None = None

    @property
    def share(self) -> tuple[int, int]:
        """(which, of how many) this process is."""
        return self.process, self.processes

    def any(self, flag: bool) -> bool:
        """Whether any process raised its flag at the call before this one; a single process hears itself at once.

        All processes must call it equally often. The answer was on its way meanwhile, so nobody waits.
        """
        if self._hosts is None:
            return flag
        before = self._ballot
        vote = torch.tensor([int(flag)])
        self._ballot = vote, dist.all_reduce(vote, group=self._hosts, async_op=True)
        if before is None:
            return False
        before[1].wait()
        return bool(before[0].item())

    def end(self) -> bool:
        """Note that this process cannot go on, whatever the others are doing. Whether it is the first to say so."""
        return self._ends(1) == 1

    @property
    def ended(self) -> bool:
        """Whether a process could not go on, which others notice by a broken connection."""
        return self._ends(0) > 0

    def _ends(self, more: int) -> int:
        """How many processes have come to their end. The launcher counts them, so that nobody waits for anybody."""
        return 0 if self._hosts is None else dist.distributed_c10d._get_default_store().add("unmask/ends", more)

    def sum(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums over all processes, in new tensors on the CPU. Waits for the device."""
        totals = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
        if self._hosts is not None:
            for total in totals.values():
                dist.all_reduce(total, group=self._hosts)
        return totals

    def sum_array(self, values: Floats) -> Floats:
        """The sum over all processes of an array of numbers."""
        return self.sum({"values": torch.from_numpy(values)})["values"].numpy()

    def gather(self, value: T) -> list[T]:
        """What each process has, in their order."""
        if self._hosts is None:
            return [value]
        values: list[Any] = [None] * self.processes
        dist.all_gather_object(values, value, group=self._hosts)
        return values

    def main_does(self, work: Callable[[], T]) -> T:
        """Let the main process do something, and tell all what came of it."""
        return self._heard(work, self.main)[0]

    def machine_does(self, work: Callable[[], T]) -> T:
        """Let one process of each machine do something, and tell its neighbours what came of it."""
        return self._heard(work, self._local_process == 0)[self.process - self._local_process]

    def _heard(self, work: Callable[[], T], chosen: bool) -> list[Any]:
        """What the chosen processes made. An error of one of them ends all: where it happened, with its sentence."""
        made, error = None, None
        if chosen:
            try:
                made = work()
            except (UnmaskError, OSError) as problem:
                error = problem
        results = self.gather((made, error is not None))
        if error is not None:
            raise error
        if any(failed for _, failed in results):
            raise SystemExit(2)
        return [result for result, _ in results]


def speaks() -> bool:
    """Whether this process is the one that a person reads, by what the launcher told it."""
    return os.environ.get("RANK", "0") == "0"
