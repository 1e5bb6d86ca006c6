"""How judged texts are shown: perplexity and entropy side by side, each figure with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from unmask.cli.common import console

if TYPE_CHECKING:
    from unmask.evaluation.generation.bootstrap import Estimate
    from unmask.evaluation.generation.frontier import Frontier, Row

TABLES = (
    {"perplexity": "perplexity", "entropy": "entropy", "repetition": "repetition"},
    {"distinct_1": "distinct-1", "distinct_2": "distinct-2", "distinct_3": "distinct-3"},
    {"tokens": "tokens", "characters": "characters"},
    {"calls": "calls", "seconds": "seconds"},
)
"""Quality, diversity, length and cost, apart, so that a row with its intervals fits 80 characters."""


def show_frontier(frontier: Frontier) -> None:
    """The tables, and what the figures are."""
    for columns in TABLES:
        console.print(_table(frontier.rows, columns))
    texts = ", ".join(dict.fromkeys(str(row.texts) for row in frontier.rows))
    _say(f"judge {frontier.judge.name}, {texts} texts a row; (low–high): 95% bootstrap intervals over texts.")
    _say("Per judge token, no end token counted; entropy in nats; calls, seconds, lengths a text; - does not apply.")
    for row in frontier.rows:
        if row.empty:
            _say(f"{row_name(row)}: {row.empty} of {row.texts} texts are empty.")


def row_name(row: Row) -> str:
    """What stands before a row, such as ``mdlm, 64 steps``."""
    return row.name if row.steps is None else f"{row.name}, {row.steps} steps"


def figure(estimate: Estimate | None) -> str:
    """A figure with its interval, such as ``20.1 (18.9–21.4)``; without it where it is not known or has no width."""
    if estimate is None:
        return "-"
    value = _short(estimate.value)
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return value
    return f"{value} ({_short(estimate.low)}–{_short(estimate.high)})"


def _table(rows: list[Row], columns: dict[str, str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for words in columns.values():
        table.add_column(words, justify="right")
    for row in rows:
        table.add_row(row_name(row), *(figure(row.figures[name]) for name in columns))
    return table


def _short(value: float) -> str:
    """Three digits: 0.023, 4.19, 20.1, 256."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def _say(words: str) -> None:
    console.print(words, style="dim", highlight=False, soft_wrap=True, markup=False)
