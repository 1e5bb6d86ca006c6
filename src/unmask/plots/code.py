"""Blanks in functions filled: how often the function parses and the blank is right, against network calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.plots.puzzles import MARKS, Contender
from unmask.plots.style import INK, colour, dashes, drawing, write_figure

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
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=7, fontsize=7)
        write_figure(figure, path)
        plt.close(figure)


def _draw_panel(axis: Any, panel: Panel, names: Sequence[str]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

    for one in panel.contenders:
        _draw_line(axis, one, INK if one.is_twin else colour(names.index(one.name)))
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(LogLocator(2.0, numticks=12))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _draw_line(axis: Any, one: Contender, ink: str) -> None:
    """Greedy tokens are filled marks, stochastic ones open; the twin's rate is a level through all calls."""
    trials = sorted(one.trials, key=lambda trial: trial.calls)
    style = "-" if one.rule == "greedy" else dashes(7)
    if one.is_twin:
        axis.axhline(one.full.accuracy[0], color=ink, linewidth=0.9, linestyle=style, zorder=1, alpha=0.5)
    shares = [trial.accuracy for trial in trials]
    bars = [[max(0.0, value - low) for value, low, _ in shares], [max(0.0, high - value) for value, _, high in shares]]
    filled = {} if one.rule == "greedy" else {"markerfacecolor": "white"}
    axis.errorbar(
        [trial.calls for trial in trials], [value for value, _, _ in shares], yerr=bars, marker=MARKS[one.rule],
        markersize=3.5, color=ink, linestyle=style, elinewidth=0.8, label=_label(one), **filled,
    )  # fmt: skip


def _label(one: Contender) -> str:
    name = one.name.replace("_", " ")
    return name if one.rule == "greedy" else f"{name}, {one.rule}"
