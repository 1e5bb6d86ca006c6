"""Puzzles solved: accuracy of every way to unmask, and the share that is wrong against network calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.plots.style import GREY, INK, colour, dashes, drawing, legend, write_figure

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


WIDTH, HEIGHT = 3.0, 2.5


@dataclass(frozen=True)
class Panel:
    """One rate of one kind of blank, for all who filled it."""

    title: str
    rate: str
    contenders: Sequence[Contender]


def draw_code(panels: Sequence[Sequence[Panel]], path: Path) -> None:
    """Draw lines of panels into a picture."""
    with drawing() as plt:
        lines, columns = len(panels), len(panels[0])
        figure = plt.figure(figsize=(max(2, columns) * WIDTH, lines * HEIGHT + 0.4), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False, sharex="col", sharey="row")
        names = list(dict.fromkeys(one.name for panel in panels[0] for one in panel.contenders))
        for line, row in zip(axes, panels, strict=True):
            for axis, panel in zip(line, row, strict=True):
                _draw_panel(axis, panel, names)
        for axis, panel in zip(axes[0], panels[0], strict=True):
            axis.set_title(panel.title)
        for line, row in zip(axes, panels, strict=True):
            line[0].set_ylabel(row[0].rate)
        for axis in axes[-1]:
            axis.set_xlabel("network calls a blank")
        handles = {text: mark for mark, text in zip(*axes[0][0].get_legend_handles_labels(), strict=True)}
        legend(figure, "outside lower center", 7, list(handles.values()), list(handles), fontsize=7)
        write_figure(figure, path)
        plt.close(figure)


def _draw_panel(axis: Any, panel: Panel, names: Sequence[str]) -> None:
    from matplotlib.ticker import PercentFormatter

    for one in panel.contenders:
        draw_line(axis, one, INK if one.is_twin else colour(names.index(one.name)), _label(one))
    count_calls(axis)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _label(one: Contender) -> str:
    name = one.name.replace("_", " ")
    return name if one.rule == "greedy" else f"{name}, {one.rule}"


SIZE = (8.4, 3.6)
ABOVE = {"greedy": 0.12, "stochastic": -0.12}
"""How far the marks of two rules stand from the line of their way."""


def draw_puzzles(contenders: Sequence[Contender], title: str, path: Path) -> None:
    """Draw both panels into a picture."""
    with drawing() as plt:
        figure = plt.figure(figsize=SIZE, layout="constrained")
        by_way, by_calls = figure.subplots(1, 2)
        names = list(dict.fromkeys(one.name for one in contenders))
        rules = {one.rule for one in contenders}
        for one in contenders:
            ink = INK if one.is_twin else colour(names.index(one.name))
            height = len(names) - 1 - names.index(one.name) + (ABOVE[one.rule] if len(rules) > 1 else 0.0)
            _draw_accuracy(by_way, one, height, ink)
            draw_line(by_calls, one, ink, one.name.replace("_", " "), wrong=True)
        lines = {text: line for line, text in zip(*by_calls.get_legend_handles_labels(), strict=True)}
        _finish_accuracy(by_way, names, rules, title)
        _finish_errors(by_calls, contenders)
        legend(figure, "outside lower center", 7, list(lines.values()), list(lines), fontsize=7)
        write_figure(figure, path)
        plt.close(figure)


def _draw_accuracy(panel: Any, one: Contender, height: float, ink: str) -> None:
    value, _, high = share = one.full.share
    panel.errorbar([value], [height], xerr=bars([share]), color=ink, markersize=4.5, **mark(one.rule))
    panel.annotate(f"{value:.1%}", (high, height), xytext=(4, -2.5), textcoords="offset points", fontsize=6.5)


def _finish_accuracy(panel: Any, names: Sequence[str], rules: set[str], title: str) -> None:
    panel.set_yticks(range(len(names)), [name.replace("_", " ") for name in reversed(names)])
    panel.set_xlim(-0.02, 1.12)
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    panel.set_ylim(-0.6, len(names) - 0.4)
    panel.set_title(f"{title}: items solved, most calls")
    words = {"greedy": "filled: greedy", "stochastic": "open: stochastic"}
    panel.set_xlabel(", ".join(words[rule] for rule in words if rule in rules) + "; bars: 95% intervals")


def _finish_errors(panel: Any, contenders: Sequence[Contender]) -> None:
    count_calls(panel)
    panel.set_ylim(-0.03, 1.03)
    panel.set_title("Sequence error against network calls")
    panel.set_xlabel("network calls an item")
    if any(one.is_twin for one in contenders):
        panel.set_title("level: the twin", loc="right", fontsize=6.5, color=GREY)
