"""Figures of reproduced tables: the first column with its errors beside the published figures, or curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.plots.style import GREY, INK, colour, dashes, legend, open_figure, plain_log_axis

if TYPE_CHECKING:
    from unmask.evaluation.tables.base import Table

WIDTH = 6.0


def draw_table(table: Table, path: Path) -> None:
    """Draw the curves of a table, or else its first column."""
    rows = len(table.rows)
    with open_figure(path, (WIDTH, 3.4 if table.curves else 1.2 + 0.32 * rows)) as figure:
        if table.curves:
            _draw_curves(figure, table)
        else:
            panel = figure.add_subplot()
            panel.set_title(table.title)
            _draw_column(figure, panel, table)


def _draw_column(figure: Any, panel: Any, table: Table) -> None:
    column = table.columns[0]
    cells = {label: row[column] for label, row in table.rows.items() if not isinstance(row.get(column, ""), str)}
    places = list(range(len(cells)))[::-1]
    values = [cell.value for cell in cells.values()]  # type: ignore[union-attr]
    errors = [cell.spread for cell in cells.values()]  # type: ignore[union-attr]
    panel.errorbar(values, places, xerr=errors, fmt="o", color=INK, markersize=4, label="measured")
    published = [
        (table.published[label][column], place)
        for label, place in zip(cells, places, strict=True)
        if table.comparable and column in table.published.get(label, {})
    ]
    if published:
        panel.plot(
            *zip(*published, strict=True), "o", markersize=5, markerfacecolor="none", color=GREY, label="published"
        )
        legend(figure, "outside lower center", 2, *panel.get_legend_handles_labels())
    panel.set_yticks(places, list(cells))
    panel.set_ylim(-0.6, len(cells) - 0.4)
    if table.log_x:
        panel.set_xscale("log")
        plain_log_axis(panel.xaxis, 10)
    panel.grid(axis="x")
    panel.set_xlabel(column)


def _draw_curves(figure: Any, table: Table) -> None:
    """A panel for each pair of axes, side by side. A curve has the same colour in all of them."""
    x_axis, y_axis = table.axes
    places = [(curve.x_axis or x_axis, curve.axis or y_axis) for curve in table.curves]
    labels = list(dict.fromkeys(curve.label for curve in table.curves))
    pairs = list(dict.fromkeys(places))
    panels = dict(zip(pairs, figure.subplots(1, len(pairs), squeeze=False)[0], strict=True))
    figure.suptitle(table.title, x=0.01, ha="left", fontsize=8.5)
    handles = {}
    for curve, place in zip(table.curves, places, strict=True):
        number = labels.index(curve.label)
        style: dict[str, Any] = {"color": colour(number), "linestyle": dashes(number), "marker": "o", "markersize": 3}
        handles[curve.label] = panels[place].errorbar(curve.x, curve.y, yerr=list(curve.errors) or None, **style)
    for (x_label, y_label), panel in panels.items():
        if table.log_x:
            panel.set_xscale("log")
            plain_log_axis(panel.xaxis, 10, subs=(1.0,) if len(panels) > 2 else (1.0, 2.0, 5.0))
        panel.set_xlabel(x_label)
        panel.set_ylabel(y_label)
    if len(labels) > 1:
        legend(figure, "outside lower center", 4, list(handles.values()), labels)
