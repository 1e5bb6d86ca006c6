"""The picture of a contest on puzzles: how many items each way solves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.evaluation.contests.picture import contenders
from unmask.evaluation.contests.report import Row
from unmask.plots.puzzles import draw_puzzles


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draw all rows."""
    draw_puzzles(contenders(rows, "accuracy"), title, path)
