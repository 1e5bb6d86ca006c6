"""The rows of a frontier as curves to be drawn: one a model, one for each other origin of texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from unmask.evaluation.generation.bootstrap import Estimate
from unmask.evaluation.generation.frontier import Row
from unmask.plots.frontier import Curve, Interval, Point, draw_frontier


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows that have a perplexity."""
    draw_frontier(curves(rows), path)


def curves(rows: Sequence[Row]) -> list[Curve]:
    """Rows of one name stand together and become one curve; those without a token are left out."""
    shown = [row for row in rows if row.figures["perplexity"] is not None]
    grouped = groupby(shown, key=lambda row: (row.name, row.kind))
    return [Curve(name, [_point(row) for row in group], kind == "data") for (name, kind), group in grouped]


def _point(row: Row) -> Point:
    perplexity, entropy, calls = (row.figures[name] for name in ("perplexity", "entropy", "calls"))
    assert perplexity is not None
    assert entropy is not None
    label = "" if row.steps is None else f"T={row.steps}"
    return Point(_interval(perplexity), _interval(entropy), None if calls is None else _interval(calls), label)


def _interval(estimate: Estimate) -> Interval:
    return estimate.value, estimate.low, estimate.high
