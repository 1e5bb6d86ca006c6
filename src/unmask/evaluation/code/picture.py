"""The rows of a contest as lines to be drawn: one for each way under each token rule, in a panel a kind and rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.evaluation.code.report import Row
from unmask.plots.code import Panel, draw_code
from unmask.plots.puzzles import Contender, Trial

RATES = {"parses": "functions that parse", "exact": "blanks filled exactly"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw all rows."""
    draw_code(panels(rows), path)


def panels(rows: Sequence[Row]) -> list[list[Panel]]:
    """A line of panels for each rate, one panel for each kind of blank."""
    kinds = list(dict.fromkeys(row.kind for row in rows))
    return [[Panel(kind, words, contenders(rows, kind, rate)) for kind in kinds] for rate, words in RATES.items()]


def contenders(rows: Sequence[Row], kind: str, rate: str) -> list[Contender]:
    """Rows of one model, way and rule become one line."""
    found: dict[tuple[bool, str, str], list[Trial]] = {}
    for row in rows:
        if row.kind == kind:
            found.setdefault((row.causal, row.way, row.rule), []).append(_trial(row, rate))
    return [
        Contender("AR twin" if causal else way, rule, trials, causal) for (causal, way, rule), trials in found.items()
    ]


def _trial(row: Row, rate: str) -> Trial:
    share = row.figures[rate]
    assert share.low is not None
    assert share.high is not None
    return Trial(row.figures["calls"].value, (share.value, share.low, share.high))
