"""Time and memory of several implementations, measured in rounds, interleaved, so that noise affects all alike."""

from __future__ import annotations

import gc
import multiprocessing
import platform
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from unmask.training.metrics import GIB, peak_memory_gib

from .setup import Workload

FORWARD_SHARE = 1 / 3
"""Operations of a forward pass as a share of forward and backward pass together."""

T = TypeVar("T")
Run = Callable[[], float]
"""Do the work once and return the seconds it took."""
Progress = Callable[[int], None]


def stopwatch(work: Callable[[], Any], device: torch.device) -> Run:
    """Time `work` from an idle device to an idle device."""

    def run() -> float:
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        return time.perf_counter() - start

    return run


def synchronize(device: torch.device) -> None:
    """Wait for the kernels of a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_rounds(
    runs: Mapping[str, Run], repeats: int, warmup: int, progress: Progress | None = None
) -> dict[str, list[float]]:
    """Return the seconds of each run in `repeats` rounds, after `warmup` rounds that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(warmup + repeats):
        for name, run in runs.items():
            elapsed = run()
            if number >= warmup:
                seconds[name].append(elapsed)
            if progress is not None:
                progress(1)
    return seconds


def matrix_rate(device: torch.device, dtype: torch.dtype, repeats: int = 7) -> float:
    """Return the operations per second of a large square matrix product, the median of `repeats` measurements."""
    size, products = (8192, 8) if device.type == "cuda" else (1024, 2)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))

    def multiply() -> None:
        for _ in range(products):
            left @ right

    run = stopwatch(multiply, device)
    run()
    return 2 * size**3 * products / statistics.median(run() for _ in range(repeats))


# ---- memory ----------------------------------------------------------------------------------------------------------


def peak_gib(prepare: Callable[..., Run], arguments: tuple[Any, ...], device: torch.device) -> float:
    """Return the peak memory of `prepare(*arguments)` and one run of it.

    On a GPU this is the memory reserved by PyTorch, including CUDA graphs and cached blocks. On a CPU it is the growth
    of a new process, so `prepare` and its arguments must be picklable.
    """
    if device.type != "cuda":
        return run_in_process(_process_growth_gib, prepare, arguments, torch.get_num_threads())
    _empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    prepare(*arguments)()
    peak = torch.cuda.max_memory_reserved(device) - before
    _empty_cache()
    return peak / GIB


def _empty_cache() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _process_growth_gib(prepare: Callable[..., Run], arguments: tuple[Any, ...], threads: int) -> float:
    torch.set_num_threads(threads)
    before = _process_peak_gib()
    prepare(*arguments)()
    return _process_peak_gib() - before


def _process_peak_gib() -> float:
    """Read VmHWM on Linux, where `getrusage` of a new process starts at the peak of its parent."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return peak_memory_gib(torch.device("cpu")) or 0.0
    (kib,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(kib) * 1024 / GIB


def run_in_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a picklable function in a new process, which is killed on Ctrl-C."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with _children_ignore_interrupts():
            future = pool.submit(function, *arguments)
        try:
            return future.result()
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.kill()
            raise


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """Processes started in this block ignore the SIGINT that a terminal sends to all of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


# ---- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Summarise one value or more."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Machine:
    """The device of a measurement, and the operations per second of a large matrix product on it."""

    device: str
    threads: int
    matrix_rate: float
    torch_version: str = torch.__version__

    @classmethod
    def measure(cls, device: torch.device, precision: torch.dtype) -> Machine:
        """Describe this machine."""
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
        return cls(name, torch.get_num_threads(), matrix_rate(device, precision))

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "device": self.device,
            "threads": self.threads,
            "torch": self.torch_version,
            "matrix_teraflops": self.matrix_rate / 1e12,
        }


@dataclass(frozen=True)
class Result:
    """One implementation: `seconds` of each round for `tokens` tokens in `count` steps or calls of `flops` operations.

    `estimated` marks seconds extrapolated from a part of the run.
    """

    tokens: int
    count: float
    flops: float
    seconds: list[float]
    peak_gib: float | None = None
    unit: str = "step"
    estimated: bool = False

    @property
    def spread(self) -> Spread:
        """Median and quartiles of the seconds."""
        return Spread.of(self.seconds)

    def mfu(self, machine: Machine) -> float:
        """Return model FLOPs utilisation, as a share of the measured matrix rate."""
        return self.flops / self.spread.median / machine.matrix_rate

    def as_dict(self, machine: Machine) -> dict[str, Any]:
        """Values for JSON."""
        median = self.spread.median
        return {
            "tokens": self.tokens,
            "seconds": asdict(self.spread),
            "tokens_per_second": self.tokens / median,
            f"{self.unit}s": self.count,
            f"ms_per_{self.unit}": 1000 * median / self.count,
            "peak_gib": self.peak_gib,
            "mfu": self.mfu(machine),
            "estimated": self.estimated,
        }


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one result is as another, and its memory as a share of the other's."""

    speed: Spread
    memory: float | None

    @classmethod
    def of(cls, one: Result, other: Result) -> Ratio:
        """Compare tokens per second round by round; both results are from the same rounds."""
        work = one.tokens / other.tokens
        speed = [work * theirs / ours for ours, theirs in zip(one.seconds, other.seconds, strict=True)]
        memory = one.peak_gib / other.peak_gib if one.peak_gib is not None and other.peak_gib else None
        return cls(Spread.of(speed), memory)


@dataclass(frozen=True)
class Report:
    """The results of one comparison; the first implementation is compared with each of the others."""

    machine: Machine
    setup: dict[str, Any]
    results: dict[str, Result]

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The first result against each of the others."""
        first, *others = self.results
        return {name: Ratio.of(self.results[first], self.results[name]) for name in others}

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "place": self.machine.as_dict(),
            "setup": self.setup,
            "results": {name: result.as_dict(self.machine) for name, result in self.results.items()},
            "against": {name: asdict(ratio) for name, ratio in self.ratios.items()},
        }


def compare(
    work: Workload,
    implementations: Mapping[str, Callable[[Workload], Run]],
    flops: Mapping[str, float],
    unit: str,
    description: dict[str, Any],
    memory_work: Workload,
    repeats: int = 5,
    warmup: int = 1,
    memory: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Measure the peak memory of each implementation alone, on `memory_work`, then the seconds of all in rounds."""
    setup = work.setup
    machine = Machine.measure(setup.device, setup.precision)
    peaks: dict[str, float | None] = dict.fromkeys(implementations)
    with setup.refuse_out_of_memory():
        for name, prepare in implementations.items() if memory else ():
            peaks[name] = peak_gib(prepare, (memory_work,), setup.device)
            if progress is not None:
                progress(1)
        runs = {name: prepare(work) for name, prepare in implementations.items()}
        seconds = measure_rounds(runs, repeats, warmup, progress)
    results = {
        name: Result(work.tokens, work.count, flops[name], seconds[name], peaks[name], unit) for name in implementations
    }
    return Report(machine, {**description, "repeats": repeats, "warmup": warmup}, results)
