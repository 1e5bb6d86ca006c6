"""Puzzles solved: accuracy of every way to unmask, and the share that is wrong against network calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.plots.style import GREY, INK, colour, dashes, drawing, write_figure

SIZE = (8.4, 3.6)
MARKS = {"greedy": "o", "stochastic": "D"}

Interval = tuple[float, float, float]
"""A share and the ends of its interval."""


@dataclass(frozen=True)
class Trial:
    """Items solved in one way in so many `calls` an item."""

    calls: float
    accuracy: Interval


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


def draw_puzzles(contenders: Sequence[Contender], title: str, path: Path) -> None:
    """Draw both panels into a picture."""
    with drawing() as plt:
        figure = plt.figure(figsize=SIZE, layout="constrained")
        by_way, by_calls = figure.subplots(1, 2)
        names = list(dict.fromkeys(one.name for one in contenders))
        for one in contenders:
            ink = INK if one.is_twin else colour(names.index(one.name))
            _draw_accuracy(by_way, one, len(names) - 1 - names.index(one.name), ink)
            _draw_errors(by_calls, one, ink)
        lines = {text: line for line, text in zip(*by_calls.get_legend_handles_labels(), strict=True)}
        _finish_accuracy(by_way, names, {one.rule for one in contenders}, title)
        _finish_errors(by_calls, contenders)
        figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=7, fontsize=7)
        write_figure(figure, path)
        plt.close(figure)


def _draw_accuracy(panel: Any, one: Contender, height: int, ink: str) -> None:
    value, low, high = one.full.accuracy
    offset = 0.12 if one.rule == "greedy" else -0.12
    bars = [[max(0.0, value - low)], [max(0.0, high - value)]]
    filled = {} if one.rule == "greedy" else {"markerfacecolor": "white"}
    panel.errorbar([value], [height + offset], xerr=bars, marker=MARKS[one.rule], color=ink, markersize=4.5, **filled)
    panel.annotate(f"{value:.1%}", (high, height + offset), xytext=(4, -2.5), textcoords="offset points", fontsize=6.5)


def _finish_accuracy(panel: Any, names: Sequence[str], rules: set[str], title: str) -> None:
    panel.set_yticks(range(len(names)), [name.replace("_", " ") for name in reversed(names)])
    panel.set_xlim(-0.02, 1.12)
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    panel.set_ylim(-0.6, len(names) - 0.4)
    panel.set_title(f"{title}: items solved, most calls")
    words = {"greedy": "filled: greedy", "stochastic": "open: stochastic"}
    panel.set_xlabel(", ".join(words[rule] for rule in words if rule in rules) + "; bars: 95% intervals")


def _draw_errors(panel: Any, one: Contender, ink: str) -> None:
    """One line for each way, greedy where it was tried so; the twin's is a level through all calls."""
    trials = sorted(one.trials, key=lambda trial: trial.calls)
    style = "-" if one.rule == "greedy" else dashes(7)
    if one.is_twin:
        panel.axhline(1 - one.full.accuracy[0], color=ink, linewidth=0.9, linestyle=style, zorder=1, alpha=0.5)
    error = [1 - trial.accuracy[0] for trial in trials]
    below = [max(0.0, trial.accuracy[2] - trial.accuracy[0]) for trial in trials]
    above = [max(0.0, trial.accuracy[0] - trial.accuracy[1]) for trial in trials]
    filled = {} if one.rule == "greedy" else {"markerfacecolor": "white"}
    panel.errorbar(
        [trial.calls for trial in trials], error, yerr=[below, above], marker=MARKS[one.rule], markersize=3.5,
        color=ink, linestyle=style, elinewidth=0.8, label=one.name.replace("_", " "), **filled,
    )  # fmt: skip


def _finish_errors(panel: Any, contenders: Sequence[Contender]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(LogLocator(2.0, numticks=12))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_ylim(-0.03, 1.03)
    panel.set_title("Sequence error against network calls")
    panel.set_xlabel("network calls an item")
    if any(one.is_twin for one in contenders):
        panel.set_title("level: the twin", loc="right", fontsize=6.5, color=GREY)
