"""Blanks in functions filled: how often the function parses and the blank is right, against network calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.plots.contests import Contender, count_calls, draw_line
from unmask.plots.style import INK, colour, drawing, legend, write_figure

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
