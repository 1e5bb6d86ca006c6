"""The rows of a contest as lines to be drawn: one for each way under each token rule."""

from __future__ import annotations

from collections.abc import Iterable

from unmask.evaluation.contests.report import Row
from unmask.plots.contests import Contender, Trial


def contenders(rows: Iterable[Row], rate: str) -> list[Contender]:
    """Rows of one model, way and rule become one line of a rate."""
    found: dict[tuple[bool, str, str], list[Trial]] = {}
    for row in rows:
        found.setdefault((row.causal, row.way, row.rule), []).append(_trial(row, rate))
    return [
        Contender("AR twin" if causal else way, rule, trials, causal) for (causal, way, rule), trials in found.items()
    ]


def _trial(row: Row, rate: str) -> Trial:
    share = row.figures[rate]
    assert share.low is not None
    assert share.high is not None
    return Trial(row.figures["calls"].value, (share.value, share.low, share.high))
