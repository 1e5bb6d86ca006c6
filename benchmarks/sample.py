"""Sampling by masked diffusion, its autoregressive counterpart and the plain implementation, over lengths and batches.

Steps of one sampling run cost the same, or grow linearly, so a long run is timed over a few of its steps.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, Sampler, run_sampler, sample
from unmask.training.metrics import head_flops, trunk_flops

from .measure import (
    FORWARD_SHARE,
    Machine,
    Progress,
    Ratio,
    Result,
    Run,
    measure_rounds,
    peak_gib,
    stopwatch,
    synchronize,
)
from .plain import plain_sample
from .setup import Setup

UNTIMED_STEPS = 3
"""Steps before the timed ones: they read the prompt and record CUDA graphs."""
REMAINING_STEPS = 32
"""Steps after the last timed one: near its end autoregressive sampling no longer uses CUDA graphs."""
PROBE_STEPS = 3
"""Steps from which the seconds of a whole run are first estimated."""
SHORTEST = PROBE_STEPS + UNTIMED_STEPS + REMAINING_STEPS
"""A run of at most this many steps is always timed as a whole."""


class SamplingBenchmark(ABC):
    """A network and a sampler that fills a canvas in `total` steps, each at most one network call."""

    total: int

    def __init__(self, setup: Setup, steps: int | None = None) -> None:
        """Build the network. `steps` None samples one token at a time."""
        self.setup = setup
        self.steps = steps

    @abstractmethod
    def stream(self, prompt: int = 0) -> Generator[Any, None, None]:
        """Sample after `prompt` given tokens, yielding before the first step and after each."""

    def run(self) -> None:
        """Sample once."""
        for _ in self.stream():
            pass

    @property
    def calls(self) -> float:
        """Network calls of a run."""
        return self.total

    @property
    def flops(self) -> float:
        """Operations of a run: each call reads all tokens, and each token passes the head once."""
        config, tokens = self.setup.config, self.setup.batch * self.setup.length
        trunk = self.calls * tokens * trunk_flops(config, self.setup.length)
        return FORWARD_SHARE * (trunk + tokens * head_flops(config))

    def step_seconds(self, prompt: int, steps: int) -> float:
        """Return the mean seconds of `steps` steps after the untimed ones."""
        device = self.setup.device
        with closing(self.stream(prompt)) as states:
            for _ in range(1 + UNTIMED_STEPS):
                next(states)
            synchronize(device)
            start = time.perf_counter()
            for _ in range(steps):
                next(states)
            synchronize(device)
        return (time.perf_counter() - start) / steps

    def estimate_seconds(self, steps: int) -> float:
        """Estimate the seconds of a whole run from some of its steps, which cost the same anywhere."""
        return self.total * self.step_seconds(0, steps)


class DiffusionSampling(SamplingBenchmark):
    """Ancestral sampling of masked diffusion."""

    def __init__(self, setup: Setup, steps: int | None = None) -> None:
        super().__init__(setup, steps)
        self.sampler = self.make_sampler()
        self.network = setup.inference_network(self.sampler.causal)
        self.total = self.sampler.begin(self._canvas(0)).total

    def make_sampler(self) -> Sampler:
        """Make the sampler that is measured."""
        return AncestralSampler(steps=self.steps, schedule=self.setup.schedule)

    def run(self) -> None:
        sample(self.sampler, self.network, self._canvas(0))

    def stream(self, prompt: int = 0) -> Generator[Any, None, None]:
        yield from run_sampler(self.sampler, self.network, self._canvas(prompt))

    def _canvas(self, prompt: int) -> Canvas:
        setup = self.setup
        ids = torch.full((setup.batch, setup.length), setup.mask_token_id)
        ids[:, :prompt] = torch.from_numpy(setup.ids(setup.batch))[:, :prompt]
        return Canvas.of(ids.to(setup.device), setup.mask_token_id)


class AutoregressiveSampling(DiffusionSampling):
    """The autoregressive counterpart with a key-value cache: a call reads one token and attends to all before it."""

    def make_sampler(self) -> Sampler:
        return AutoregressiveSampler()

    @property
    def flops(self) -> float:
        config, tokens = self.setup.config, self.setup.batch * self.setup.length
        return FORWARD_SHARE * tokens * (trunk_flops(config, self.setup.length / 2) + head_flops(config))

    def estimate_seconds(self, steps: int) -> float:
        """Average steps at both ends, since the cost of a step grows linearly with its position."""
        last = self.setup.length - steps - UNTIMED_STEPS - REMAINING_STEPS
        return self.total * (self.step_seconds(0, steps) + self.step_seconds(last, steps)) / 2


class PlainSampling(SamplingBenchmark):
    """The plain ancestral sampler, which also takes the steps that reveal nothing."""

    def __init__(self, setup: Setup, steps: int) -> None:
        super().__init__(setup, steps)
        self.network = setup.plain_network().eval()
        self.total = steps
        self.calls_per_step = 1.0

    def stream(self, prompt: int = 0) -> Generator[Any, None, None]:
        setup = self.setup
        states = plain_sample(self.network, setup.batch, setup.length, self.total, setup.precision)
        for step, (canvas, calls) in enumerate(states):
            self.calls_per_step = calls / max(step, 1)
            yield canvas

    @property
    def calls(self) -> float:
        """Network calls of a run, extrapolated from the last one, which may have been a part."""
        return self.total * self.calls_per_step


def choose_run(benchmark: SamplingBenchmark, repeats: int, limit: float) -> tuple[Run, bool]:
    """Return a whole run, or an estimate if `repeats` of them would exceed `limit` seconds, and whether it is one."""
    whole = stopwatch(benchmark.run, benchmark.setup.device)
    if benchmark.total <= SHORTEST:
        return whole, False
    benchmark.estimate_seconds(PROBE_STEPS)
    expected = benchmark.estimate_seconds(PROBE_STEPS)
    if repeats * expected <= limit:
        return whole, False
    steps = max(PROBE_STEPS, int(benchmark.total * limit / (2 * repeats * expected)))
    steps = min(steps, benchmark.total - UNTIMED_STEPS - REMAINING_STEPS)
    return (lambda: benchmark.estimate_seconds(steps)), True


def prepare_short_run(kind: type[SamplingBenchmark], setup: Setup, steps: int | None) -> Run:
    """Prepare enough of a run to measure its memory."""
    benchmark = kind(setup, steps)
    if benchmark.total > SHORTEST:
        return lambda: benchmark.estimate_seconds(PROBE_STEPS)
    return stopwatch(benchmark.run, setup.device)


@dataclass(frozen=True)
class Cell:
    """The results for one length and batch size."""

    length: int
    batch: int
    results: dict[str, Result]

    @property
    def ratios(self) -> dict[str, Ratio]:
        """Masked diffusion against the plain implementation with as many steps."""
        return {
            name: Ratio.of(self.results[name.replace("plain", "mdlm")], result)
            for name, result in self.results.items()
            if name.startswith("plain")
        }

    def as_dict(self, machine: Machine) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "length": self.length,
            "batch": self.batch,
            "results": {name: result.as_dict(machine) for name, result in self.results.items()},
            "against": {name: asdict(ratio) for name, ratio in self.ratios.items()},
        }


@dataclass(frozen=True)
class Crossover:
    """`winner` is faster at the largest length or batch (`axis`), and from `at` on; `at` is None if everywhere.

    `fixed` is the value of the other axis.
    """

    axis: str
    fixed: int
    winner: str
    loser: str
    at: float | None

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        other = "batch" if self.axis == "length" else "length"
        return {"along": self.axis, other: self.fixed, "winner": self.winner, "loser": self.loser, "at": self.at}


@dataclass(frozen=True)
class SweepReport:
    """The results of every length and batch size."""

    machine: Machine
    setup: dict[str, Any]
    cells: list[Cell]

    @property
    def crossovers(self) -> list[Crossover]:
        """Masked diffusion with each number of steps against the autoregressive counterpart."""
        names = self.cells[0].results
        ours = [name for name in names if name.startswith("mdlm") and "ar" in names]
        return [one for name in ours for one in find_crossovers(self.cells, name, "ar")]

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {
            "place": self.machine.as_dict(),
            "setup": self.setup,
            "cells": [cell.as_dict(self.machine) for cell in self.cells],
            "crossings": [one.as_dict() for one in self.crossovers],
        }


def find_crossovers(cells: Sequence[Cell], first: str, second: str) -> list[Crossover]:
    """Compare two samplers along lengths at each batch size, then along batch sizes at each length."""
    found = []
    for axis, other in (("length", "batch"), ("batch", "length")):
        for fixed in sorted({getattr(cell, other) for cell in cells}):
            row = [cell for cell in cells if getattr(cell, other) == fixed]
            row.sort(key=lambda cell: getattr(cell, axis))
            if len(row) < 2:
                continue
            sizes = [getattr(cell, axis) for cell in row]
            # log of the speed ratio; positive where `first` is faster
            lead = [math.log(cell.results[second].spread.median / cell.results[first].spread.median) for cell in row]
            winner, loser = (first, second) if lead[-1] > 0 else (second, first)
            found.append(Crossover(axis, fixed, winner, loser, find_crossing(sizes, lead)))
    return found


def find_crossing(sizes: Sequence[float], lead: Sequence[float]) -> float | None:
    """Return the size at which `lead` takes its last sign, interpolated in log size, or None if it never changes."""
    changes = [i for i, value in enumerate(lead) if (value > 0) != (lead[-1] > 0)]
    if not changes:
        return None
    i = changes[-1]
    share = lead[i] / (lead[i] - lead[i + 1])
    low, high = math.log(sizes[i]), math.log(sizes[i + 1])
    return math.exp(low + share * (high - low))


def measure_sweep(
    setup: Setup,
    lengths: Sequence[int],
    batches: Sequence[int],
    steps: Sequence[int],
    against: Iterable[str] = ("one by one", "ar"),
    repeats: int = 3,
    warmup: int = 1,
    limit: float = 10.0,
    memory: bool = True,
    progress: Progress | None = None,
) -> SweepReport:
    """Measure masked diffusion in each number of `steps`, and the samplers in `against`, at each length and batch size.

    `against` may contain "one by one" (one token per call), "ar" and "plain". A sampler may take about `limit` seconds.
    """
    samplers: dict[str, tuple[type[SamplingBenchmark], int | None]] = {}
    samplers |= {f"mdlm T={T}": (DiffusionSampling, T) for T in steps}
    if "one by one" in against:
        samplers["mdlm one by one"] = (DiffusionSampling, None)
    if "ar" in against:
        samplers["ar"] = (AutoregressiveSampling, None)
    if "plain" in against:
        samplers |= {f"plain T={T}": (PlainSampling, T) for T in steps}
    machine = Machine.measure(setup.device, setup.precision)
    cells = []
    for batch in batches:
        for length in lengths:
            cell_setup = replace(setup, length=length, batch=batch)
            with cell_setup.refuse_out_of_memory():
                results = _measure_cell(cell_setup, samplers, repeats, warmup, limit, memory)
            cells.append(Cell(length, batch, results))
            if progress is not None:
                progress(1)
    description = {name: value for name, value in setup.as_dict().items() if name not in ("length", "batch")}
    description |= {"repeats": repeats, "warmup": warmup, "limit": limit if math.isfinite(limit) else None}
    return SweepReport(machine, description, cells)


def _measure_cell(
    setup: Setup,
    samplers: dict[str, tuple[type[SamplingBenchmark], int | None]],
    repeats: int,
    warmup: int,
    limit: float,
    memory: bool,
) -> dict[str, Result]:
    peaks = {
        name: peak_gib(prepare_short_run, (kind, setup, steps), setup.device) if memory else None
        for name, (kind, steps) in samplers.items()
    }
    benchmarks = {name: kind(setup, steps) for name, (kind, steps) in samplers.items()}
    runs = {name: choose_run(benchmark, repeats, limit) for name, benchmark in benchmarks.items()}
    seconds = measure_rounds({name: run for name, (run, _) in runs.items()}, repeats, warmup)
    tokens = setup.batch * setup.length
    return {
        name: Result(tokens, one.calls, one.flops, seconds[name], peaks[name], "call", estimated=runs[name][1])
        for name, one in benchmarks.items()
    }
