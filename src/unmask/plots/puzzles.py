"""Puzzles solved: accuracy of every way to unmask, and the share that is wrong against network calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.plots.contests import Contender, bars, count_calls, draw_line, mark
from unmask.plots.style import GREY, INK, colour, drawing, legend, write_figure

SIZE = (8.4, 3.6)
ABOVE = {"greedy": 0.12, "stochastic": -0.12}
"""How far the marks of two rules stand from the line of their way."""


def draw_puzzles(contenders: Sequence[Contender], title: str, path: Path) -> None:
    """Draw both panels into a picture."""
    with drawing() as plt:
        figure = plt.figure(figsize=SIZE, layout="constrained")
        by_way, by_calls = figure.subplots(1, 2)
        names = list(dict.fromkeys(one.name for one in contenders))
        rules = {one.rule for one in contenders}
        for one in contenders:
            ink = INK if one.is_twin else colour(names.index(one.name))
            height = len(names) - 1 - names.index(one.name) + (ABOVE[one.rule] if len(rules) > 1 else 0.0)
            _draw_accuracy(by_way, one, height, ink)
            draw_line(by_calls, one, ink, one.name.replace("_", " "), wrong=True)
        lines = {text: line for line, text in zip(*by_calls.get_legend_handles_labels(), strict=True)}
        _finish_accuracy(by_way, names, rules, title)
        _finish_errors(by_calls, contenders)
        legend(figure, "outside lower center", 7, list(lines.values()), list(lines), fontsize=7)
        write_figure(figure, path)
        plt.close(figure)


def _draw_accuracy(panel: Any, one: Contender, height: float, ink: str) -> None:
    value, _, high = share = one.full.share
    panel.errorbar([value], [height], xerr=bars([share]), color=ink, markersize=4.5, **mark(one.rule))
    panel.annotate(f"{value:.1%}", (high, height), xytext=(4, -2.5), textcoords="offset points", fontsize=6.5)


def _finish_accuracy(panel: Any, names: Sequence[str], rules: set[str], title: str) -> None:
    panel.set_yticks(range(len(names)), [name.replace("_", " ") for name in reversed(names)])
    panel.set_xlim(-0.02, 1.12)
    panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    panel.set_ylim(-0.6, len(names) - 0.4)
    panel.set_title(f"{title}: items solved, most calls")
    words = {"greedy": "filled: greedy", "stochastic": "open: stochastic"}
    panel.set_xlabel(", ".join(words[rule] for rule in words if rule in rules) + "; bars: 95% intervals")


def _finish_errors(panel: Any, contenders: Sequence[Contender]) -> None:
    count_calls(panel)
    panel.set_ylim(-0.03, 1.03)
    panel.set_title("Sequence error against network calls")
    panel.set_xlabel("network calls an item")
    if any(one.is_twin for one in contenders):
        panel.set_title("level: the twin", loc="right", fontsize=6.5, color=GREY)
