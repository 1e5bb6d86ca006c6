"""Samplers over lengths and batches, and where one overtakes another.

A walk that would take too long is timed over an excerpt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from unmask.benchmarks.crossing import Crossing, find_crossing
from unmask.benchmarks.report import Place, Ratio, Result
from unmask.benchmarks.room import room_for
from unmask.benchmarks.sample import CONTENDERS, LEFT, UNTIMED, Sampling, Walker
from unmask.benchmarks.setup import Setup
from unmask.benchmarks.timing import Progress, Run, peak_gib, race, stopwatch

PROBE = 3
"""Steps that tell how long a walk will take."""
SHORT = PROBE + UNTIMED + LEFT
"""Steps of a walk that is too short for an excerpt."""


@dataclass(frozen=True)
class Sweep:
    """What is tried, how often, and how many seconds one figure may take."""

    setup: Setup
    lengths: Sequence[int]
    batches: Sequence[int]
    steps: Sequence[int]
    rivals: Sequence[str] = ("one by one", "ar")
    """Who fills the same canvases beside masked diffusion in T steps: one by one, ar, plain."""
    repeats: int = 3
    warmup: int = 1
    limit: float = 10.0
    memory: bool = True

    @property
    def cells(self) -> int:
        """Pairs of a length and a batch."""
        return len(self.lengths) * len(self.batches)

    def works(self, length: int, batch: int) -> list[Sampling]:
        """The contenders of a cell."""
        setup = replace(self.setup, length=length, batch=batch)
        works = [Sampling(setup, "mdlm", T) for T in self.steps]
        works += [Sampling(setup, "mdlm")] if "one by one" in self.rivals else []
        works += [Sampling(setup, "ar")] if "ar" in self.rivals else []
        return works + [Sampling(setup, "plain", T) for T in self.steps if "plain" in self.rivals]

    def measure(self, progress: Progress | None = None) -> SweepReport:
        """All cells; `progress` hears of each."""
        place = Place.of(self.setup.device, self.setup.precision)
        cells = []
        for batch in self.batches:
            for length in self.lengths:
                with room_for(replace(self.setup, length=length, batch=batch)):
                    cells.append(self._cell(length, batch))
                if progress is not None:
                    progress(1)
        return SweepReport(self, place, cells)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        limit = self.limit if math.isfinite(self.limit) else None
        shared = {name: value for name, value in self.setup.as_dict().items() if name not in ("length", "batch")}
        return {**shared, "repeats": self.repeats, "warmup": self.warmup, "limit": limit}

    def _cell(self, length: int, batch: int) -> Cell:
        works = self.works(length, batch)
        device = self.setup.device
        peaks = {work.name: peak_gib(prepare_excerpt, (work,), device) if self.memory else None for work in works}
        walkers = {work.name: CONTENDERS[work.contender](work) for work in works}
        chosen = {name: choose_run(walker, self.repeats, self.limit) for name, walker in walkers.items()}
        seconds = race({name: run for name, (run, _) in chosen.items()}, self.repeats, self.warmup)
        results = {
            name: Result(
                walker.work.tokens, walker.calls, walker.flops, seconds[name], peaks[name], "call", chosen[name][1]
            )
            for name, walker in walkers.items()
        }
        return Cell(length, batch, results)


@dataclass(frozen=True)
class Cell:
    """The results for one length and batch."""

    length: int
    batch: int
    results: dict[str, Result]

    @property
    def ratios(self) -> dict[str, Ratio]:
        """Masked diffusion beside the plain way with as many steps."""
        return {
            name: Ratio.of(self.results[name.replace("plain", "mdlm")], result)
            for name, result in self.results.items()
            if name.startswith("plain")
        }

    def as_dict(self, place: Place) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "length": self.length,
            "batch": self.batch,
            "results": {name: result.as_dict(place) for name, result in self.results.items()},
            "against": {name: asdict(ratio) for name, ratio in self.ratios.items()},
        }


@dataclass(frozen=True)
class SweepReport:
    """What a sweep found."""

    sweep: Sweep
    place: Place
    cells: list[Cell]

    @property
    def overtakings(self) -> list[Overtaking]:
        """Masked diffusion, by every number of steps, against the twin."""
        names = self.cells[0].results
        ours = [name for name in names if name.startswith("mdlm") and "ar" in names]
        return [one for name in ours for one in overtakings(self.cells, (name, "ar"))]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "place": self.place.as_dict(),
            "setup": self.sweep.as_dict(),
            "cells": [cell.as_dict(self.place) for cell in self.cells],
            "crossings": [one.as_dict() for one in self.overtakings],
        }


def choose_run(walker: Walker, repeats: int, limit: float) -> tuple[Run, bool]:
    """A whole walk, or where `repeats` of them would take longer than `limit` seconds an excerpt, and whether it is."""
    whole = stopwatch(walker.fill, walker.setup.device)
    if walker.total <= SHORT:
        return whole, False
    walker.seconds_by_excerpt(PROBE)
    expected = walker.seconds_by_excerpt(PROBE)
    if repeats * expected <= limit:
        return whole, False
    steps = max(PROBE, int(walker.total * limit / (2 * repeats * expected)))
    return (lambda: walker.seconds_by_excerpt(min(steps, walker.total - UNTIMED - LEFT))), True


def prepare_excerpt(work: Sampling) -> Run:
    """As much of a walk as shows how much memory it takes."""
    walker = CONTENDERS[work.contender](work)
    long = walker.total > SHORT
    return (lambda: walker.seconds_by_excerpt(PROBE)) if long else stopwatch(walker.fill, work.setup.device)


@dataclass(frozen=True)
class Overtaking:
    """Where a sampler overtakes another along one axis, the other being fixed."""

    axis: str
    fixed: int
    crossing: Crossing

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        other = "batch" if self.axis == "length" else "length"
        return {"along": self.axis, other: self.fixed, **asdict(self.crossing)}


def overtakings(cells: Sequence[Cell], rivals: tuple[str, str]) -> Iterator[Overtaking]:
    """Along lengths at each batch, then along batches at each length, wherever there are two or more."""
    keys: dict[str, Callable[[Cell], int]] = {"length": lambda cell: cell.length, "batch": lambda cell: cell.batch}
    for axis, other in (("length", "batch"), ("batch", "length")):
        for fixed in sorted({keys[other](cell) for cell in cells}):
            row = sorted((cell for cell in cells if keys[other](cell) == fixed), key=keys[axis])
            if len(row) > 1:
                seconds = {name: [cell.results[name].spread.median for cell in row] for name in rivals}
                yield Overtaking(axis, fixed, find_crossing([keys[axis](cell) for cell in row], seconds))
