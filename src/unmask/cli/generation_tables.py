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
    {"calls": "calls", "seconds": "seconds", "tokens": "tokens", "characters": "characters"},
    {"distinct_1": "distinct-1", "distinct_2": "distinct-2", "distinct_3": "distinct-3"},
)
"""Three tables, to fit 80 characters."""


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
    """A figure with its interval, such as ``20.1 (18.9–21.4)``."""
    if estimate is None:
        return "-"
    value = _short(estimate.value)
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} ({_short(estimate.low)}–{_short(estimate.high)})"


def _table(rows: list[Row], columns: dict[str, str]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("", overflow="fold")
    for words in columns.values():
        table.add_column(words, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row_name(row), *(figure(row.figures[name]) for name in columns))
    return table


def _short(value: float) -> str:
    """Three digits: 0.0234, 4.19, 20.1, 256."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def _say(words: str) -> None:
    console.print(words, style="dim", highlight=False, soft_wrap=True, markup=False)
