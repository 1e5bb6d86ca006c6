"""Figures of tables: the first column with its errors beside the published figures, all columns as bars, or curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.plots.style import (
    GREY,
    INK,
    PAPER,
    blend,
    colour,
    dashes,
    legend,
    open_figure,
    plain_log_axis,
    rgb,
    to_hex,
)

if TYPE_CHECKING:
    from unmask.evaluation.tables.base import Table

WIDTH = 6.0
PALEST = 0.65
"""How far the colour of the last curve of a group is blended into the paper."""


def draw_table(table: Table, path: Path) -> None:
    """Draw the curves of a table, or its bars, or else its first column."""
    draw, width, height = _draw_column, WIDTH, 1.2 + 0.32 * len(table.rows)
    if table.curves:
        draw, height = _draw_curves, 3.4
    elif table.bars:
        rows = table.rows if table.bar_rows is None else table.bar_rows
        draw, width, height = _draw_bars, max(WIDTH, 0.9 + 0.24 * len(rows) * (len(table.columns) + 1)), 3.4
    with open_figure(path, (width, height)) as figure:
        draw(figure, table)


def _draw_column(figure: Any, table: Table) -> None:
    panel = figure.add_subplot()
    panel.set_title(table.title)
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


def _draw_bars(figure: Any, table: Table) -> None:
    """A group of bars for each row, with one bar for each column and its spread."""
    panel = figure.add_subplot()
    panel.set_title(table.title)
    width = 0.8 / len(table.columns)
    rows = table.rows if table.bar_rows is None else {label: table.rows[label] for label in table.bar_rows}
    for number, column in enumerate(table.columns):
        cells = {place: row[column] for place, row in enumerate(rows.values()) if column in row}
        places = [place + (number - (len(table.columns) - 1) / 2) * width for place in cells]
        values = [cell.value for cell in cells.values()]  # type: ignore[union-attr]
        errors = [cell.spread for cell in cells.values()]  # type: ignore[union-attr]
        bars = {"ecolor": INK, "error_kw": {"elinewidth": 0.8}}
        panel.bar(places, values, 0.9 * width, yerr=errors, color=colour(number), label=column, **bars)
    panel.axhline(0.0, color=GREY, linewidth=0.6)
    panel.set_xticks(range(len(rows)), [label.replace(", ", "\n") for label in rows])
    panel.grid(axis="x", visible=False)
    panel.set_ylabel(table.axes[1])
    legend(figure, "outside lower center", 4, *panel.get_legend_handles_labels())


def _draw_curves(figure: Any, table: Table) -> None:
    """A panel for each pair of axes, side by side. A curve has the same colour in all of them.

    Curves whose labels agree up to the comma are a group and have shades of one colour.
    """
    x_axis, y_axis = table.axes
    places = [(curve.x_axis or x_axis, curve.axis or y_axis) for curve in table.curves]
    labels = list(dict.fromkeys(curve.label for curve in table.curves))
    pairs = list(dict.fromkeys(places))
    panels = dict(zip(pairs, figure.subplots(1, len(pairs), squeeze=False)[0], strict=True))
    figure.suptitle(table.title, x=0.01, ha="left", fontsize=8.5)
    handles = {}
    for curve, place in zip(table.curves, places, strict=True):
        style: dict[str, Any] = {**_shade(curve.label, labels), "marker": "o", "markersize": 3}
        handles[curve.label] = panels[place].errorbar(curve.x, curve.y, yerr=list(curve.errors) or None, **style)
    for (x_label, y_label), panel in panels.items():
        if table.log_x:
            panel.set_xscale("log")
            plain_log_axis(panel.xaxis, 10, subs=(1.0,) if len(panels) > 2 else (1.0, 2.0, 5.0))
        panel.set_xlabel(x_label)
        panel.set_ylabel(y_label)
    if len(labels) > 1:
        legend(figure, "outside lower center", 4, list(handles.values()), labels)


def _shade(label: str, labels: Sequence[str]) -> dict[str, Any]:
    groups = list(dict.fromkeys(one.partition(",")[0] for one in labels))
    group = label.partition(",")[0]
    members = [one for one in labels if one.partition(",")[0] == group]
    number, place = groups.index(group), members.index(label)
    pale = PALEST * place / max(1, len(members) - 1)
    return {"color": to_hex(blend(rgb(colour(number)), rgb(PAPER), pale)), "linestyle": dashes(number)}
