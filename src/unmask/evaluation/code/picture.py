"""The picture of a contest on code: a panel for each rate and kind of blank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.evaluation.code.report import Row
from unmask.evaluation.contests.picture import contenders
from unmask.plots.code import Panel, draw_code

RATES = {"parses": "functions that parse", "exact": "blanks filled exactly"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw all rows."""
    draw_code(panels(rows), path)


def panels(rows: Sequence[Row]) -> list[list[Panel]]:
    """A line of panels for each rate, one panel for each kind of blank."""
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    return [[Panel(kind, words, contenders(of, rate)) for kind, of in by_kind.items()] for rate, words in RATES.items()]
