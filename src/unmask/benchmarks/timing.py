"""How long and how much memory: rounds of several contenders, so that a noisy machine is noisy to all of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.benchmarks.apart import apart
from unmask.training.metrics import GIB, peak_memory_gib

Run = Callable[[], float]
"""Do the work once and say how many seconds it took."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Spread:
    """The median of some figures, and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: list[float]) -> Spread:
        """Of one figure or more."""
        if len(figures) == 1:
            return cls(figures[0], figures[0], figures[0])
        low, median, high = statistics.quantiles(figures, n=4, method="inclusive")
        return cls(median, low, high)


def stopwatch(work: Callable[[], Any], device: torch.device) -> Run:
    """`work` as a run, timed from an idle device to an idle device."""

    def run() -> float:
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        return time.perf_counter() - start

    return run


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def race(
    contenders: Mapping[str, Run], repeats: int, warmup: int, progress: Progress | None = None
) -> dict[str, list[float]]:
    """The seconds of each contender in each of `repeats` rounds, after `warmup` rounds that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(warmup + repeats):
        for name, run in contenders.items():
            took = run()
            if number >= warmup:
                seconds[name].append(took)
            if progress is not None:
                progress(1)
    return seconds


def speed_ratio(seconds: list[float], other: list[float]) -> Spread:
    """How many times as fast the first is as the other, round by round."""
    return Spread.of([theirs / ours for ours, theirs in zip(seconds, other, strict=True)])


def peak_gib(prepare: Callable[..., Run], arguments: tuple[Any, ...], device: torch.device) -> float:
    """The most memory that `prepare(*arguments)` and one run of it hold, with nothing else beside them.

    On a GPU that is what is taken from the card, of which recorded passes and spare blocks hold a part. On a CPU it is
    what a new process holds more than before, so both must be known by name to other modules.
    """
    if device.type != "cuda":
        return apart(_grown_gib, prepare, arguments, torch.get_num_threads())
    _let_go()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    prepare(*arguments)()
    peak = torch.cuda.max_memory_reserved(device) - before
    _let_go()
    return peak / GIB


def matrix_rate(device: torch.device, dtype: torch.dtype, repeats: int = 7) -> float:
    """Operations a second of a large square product, as this device does them: the median of some tries."""
    size, products = (8192, 8) if device.type == "cuda" else (1024, 2)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def multiply() -> None:
        for _ in range(products):
            left @ right

    run = stopwatch(multiply, device)
    run()
    return 2 * size**3 * products / statistics.median(run() for _ in range(repeats))


def _let_go() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _grown_gib(prepare: Callable[..., Run], arguments: tuple[Any, ...], threads: int) -> float:
    torch.set_num_threads(threads)
    before = _own_peak_gib()
    prepare(*arguments)()
    return _own_peak_gib() - before


def _own_peak_gib() -> float:
    """The peak of this process. What Linux tells by `getrusage` would be that of its parent, if larger."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return peak_memory_gib(torch.device("cpu")) or 0.0
    (kib,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(kib) * 1024 / GIB
