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
        panel = figure.add_subplot()
        panel.set_title(table.title)
        if table.curves:
            _draw_curves(figure, panel, table)
        else:
            _draw_column(figure, panel, table)


def _draw_column(figure: Any, panel: Any, table: Table) -> None:
    column = table.columns[0]
    cells = {label: row[column] for label, row in table.rows.items() if not isinstance(row.get(column, ""), str)}
    places = list(range(len(cells)))[::-1]
    values = [cell.value for cell in cells.values()]  # type: ignore[union-attr]
    errors = [max(cell.errors.values(), default=0.0) for cell in cells.values()]  # type: ignore[union-attr]
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
    panel.grid(axis="x")
    panel.set_xlabel(column)


def _draw_curves(figure: Any, panel: Any, table: Table) -> None:
    for number, curve in enumerate(table.curves):
        style: dict[str, Any] = {"color": colour(number), "linestyle": dashes(number), "marker": "o", "markersize": 3}
        panel.errorbar(curve.x, curve.y, yerr=list(curve.errors) or None, label=curve.label, **style)
    if table.log_x:
        panel.set_xscale("log")
        plain_log_axis(panel.xaxis, 10)
    panel.set_xlabel(table.axes[0])
    panel.set_ylabel(table.axes[1])
    if len(table.curves) > 1:
        legend(figure, "outside lower center", 4, *panel.get_legend_handles_labels())
