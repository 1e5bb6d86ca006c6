"""How judged texts are shown: perplexity and entropy side by side, each figure with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from unmask.cli.common import console
from unmask.evaluation.generation.bootstrap import figure

if TYPE_CHECKING:
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


def _table(rows: list[Row], columns: dict[str, str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for words in columns.values():
        table.add_column(words, justify="right")
    for row in rows:
        table.add_row(row_name(row), *(figure(row.figures[name]) for name in columns))
    return table


def _say(words: str) -> None:
    console.print(words, style="dim", highlight=False, soft_wrap=True, markup=False)
