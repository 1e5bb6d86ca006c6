"""What was measured, in figures for people and machines."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

import torch

from unmask.benchmarks.timing import Spread, matrix_rate, speed_ratio

FORWARD_SHARE = 1 / 3
"""What the forward pass takes of forward and backward pass together."""


@dataclass(frozen=True)
class Place:
    """Where it was measured. `rate`: the operations a second of a large product there."""

    device: str
    threads: int
    rate: float
    version: str = torch.__version__

    @classmethod
    def of(cls, device: torch.device, precision: torch.dtype) -> Place:
        """This machine, now."""
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
        return cls(name, torch.get_num_threads(), matrix_rate(device, precision))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "device": self.device,
            "threads": self.threads,
            "torch": self.version,
            "matrix_teraflops": self.rate / 1e12,
        }


@dataclass(frozen=True)
class Result:
    """What a contender took for a run.

    A run is `tokens` tokens in `units` steps or network calls, by `flops` operations. `seconds`: of every round.
    `estimated`: from an excerpt of the run.
    """

    tokens: int
    units: float
    flops: float
    seconds: list[float]
    peak_gib: float | None = None
    unit: str = "step"
    estimated: bool = False

    @property
    def spread(self) -> Spread:
        """Median and quartiles of the seconds."""
        return Spread.of(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """At the median."""
        return self.tokens / self.spread.median

    def mfu(self, place: Place) -> float:
        """The share of the measured matrix rate that the network's own products use."""
        return self.flops / self.spread.median / place.rate

    def as_dict(self, place: Place) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "tokens": self.tokens,
            "seconds": asdict(self.spread),
            "tokens_per_second": self.tokens_per_second,
            f"{self.unit}s": self.units,
            f"ms_per_{self.unit}": 1000 * self.spread.median / self.units,
            "peak_gib": self.peak_gib,
            "mfu": self.mfu(place),
            "estimated": self.estimated,
        }


@dataclass(frozen=True)
class Ratio:
    """One result beside another: how many times as fast it is, round by round, and its share of the other's memory."""

    speed: Spread
    memory: float | None

    @classmethod
    def of(cls, one: Result, other: Result) -> Ratio:
        """Both of the same race."""
        known = one.peak_gib is not None and other.peak_gib
        per_token = [seconds * other.tokens / one.tokens for seconds in one.seconds]
        return cls(speed_ratio(per_token, other.seconds), one.peak_gib / other.peak_gib if known else None)  # type: ignore[operator]


@dataclass(frozen=True)
class Report:
    """The contenders of one race; the first is compared with every other."""

    place: Place
    setup: dict[str, Any]
    results: dict[str, Result]

    @property
    def ratios(self) -> dict[str, Ratio]:
        """The first result beside each of the others."""
        first, *others = self.results
        return {name: Ratio.of(self.results[first], self.results[name]) for name in others}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "place": self.place.as_dict(),
            "setup": self.setup,
            "results": {name: result.as_dict(self.place) for name, result in self.results.items()},
            "against": {name: asdict(ratio) for name, ratio in self.ratios.items()},
        }
