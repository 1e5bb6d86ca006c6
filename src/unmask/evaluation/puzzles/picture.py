"""The rows of a contest as lines to be drawn: one for each way under each token rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.evaluation.puzzles.report import Row
from unmask.plots.puzzles import Contender, Trial, draw_puzzles


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw all rows."""
    draw_puzzles(contenders(rows), title, path)


def contenders(rows: Sequence[Row]) -> list[Contender]:
    """Rows of one model, way and rule become one line."""
    found: dict[tuple[bool, str, str], list[Trial]] = {}
    for row in rows:
        found.setdefault((row.causal, row.way, row.rule), []).append(_trial(row))
    return [
        Contender("AR twin" if causal else way, rule, trials, causal) for (causal, way, rule), trials in found.items()
    ]


def _trial(row: Row) -> Trial:
    accuracy = row.figures["accuracy"]
    assert accuracy.low is not None
    assert accuracy.high is not None
    return Trial(row.figures["calls"].value, (accuracy.value, accuracy.low, accuracy.high))
