"""What pictures of contests share: who took part, and shares against network calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.plots.style import dashes

MARKS = {"greedy": "o", "stochastic": "D"}

Interval = tuple[float, float, float]
"""A share and the ends of its interval."""


@dataclass(frozen=True)
class Trial:
    """The share of items done well in one way, in so many `calls` an item."""

    calls: float
    share: Interval


@dataclass(frozen=True)
class Contender:
    """A way to unmask under one token rule, tried in some numbers of steps. `is_twin`: the left-to-right model."""

    name: str
    rule: str
    trials: Sequence[Trial]
    is_twin: bool = False

    @property
    def full(self) -> Trial:
        """The trial with the most calls."""
        return max(self.trials, key=lambda trial: trial.calls)


def mark(rule: str) -> dict[str, Any]:
    """Greedy tokens are filled marks, stochastic ones open."""
    return {"marker": MARKS[rule], **({} if rule == "greedy" else {"markerfacecolor": "white"})}


def bars(intervals: Sequence[Interval]) -> list[list[float]]:
    """How far the intervals reach below and above their shares."""
    below = [max(0.0, value - low) for value, low, _ in intervals]
    return [below, [max(0.0, high - value) for value, _, high in intervals]]


def draw_line(axis: Any, one: Contender, ink: str, label: str, wrong: bool = False) -> None:
    """The shares, or with `wrong` what is left of them, against calls; the twin's is a level through all calls."""
    trials = sorted(one.trials, key=lambda trial: trial.calls)
    shares = [_left_of(trial.share) if wrong else trial.share for trial in trials]
    style = "-" if one.rule == "greedy" else dashes(7)
    if one.is_twin:
        axis.axhline(shares[-1][0], color=ink, linewidth=0.9, linestyle=style, zorder=1, alpha=0.5)
    axis.errorbar(
        [trial.calls for trial in trials], [value for value, _, _ in shares], yerr=bars(shares), markersize=3.5,
        color=ink, linestyle=style, elinewidth=0.8, label=label, **mark(one.rule),
    )  # fmt: skip


def count_calls(axis: Any) -> None:
    """Let the horizontal axis count network calls, in powers of two."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(LogLocator(2.0, numticks=12))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:g}")


def _left_of(share: Interval) -> Interval:
    value, low, high = share
    return 1 - value, 1 - high, 1 - low
