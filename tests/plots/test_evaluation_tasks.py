"""Figures of puzzles and code: one line per model, strategy and token rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.evaluation.statistics import Estimate
from unmask.evaluation.tasks import TaskResult, TokenRule
from unmask.plots.evaluation import MARKERS, draw_code, draw_line, draw_puzzles
from unmask.plots.style import INK, open_figure

PATH = Path("unused.png")


def row(calls: float, share: float, rule: TokenRule = "greedy", causal: bool = False, **options) -> TaskResult:
    rate = Estimate(share, share - 0.1, share + 0.05)
    metrics = {"calls": Estimate(calls), "accuracy": rate, "parses": rate, "exact": Estimate(0.0, 0.0, 0.1)}
    names = {"strategy": "ar" if causal else "left_to_right", **options}
    return TaskResult("run", rule=rule, steps=None, items=10, sampler={}, metrics=metrics, causal=causal, **names)


@pytest.mark.parametrize(
    ("error", "heights", "first_bar"), [(False, [0.2, 0.6], (0.1, 0.25)), (True, [0.8, 0.4], (0.75, 0.9))]
)
def test_a_line_shows_rates_or_errors_in_the_order_of_calls(figures, error, heights, first_bar):
    with open_figure(PATH, (3, 3)) as figure:
        axis = figure.subplots()
        draw_line(axis, [row(4, 0.6), row(1, 0.2)], "accuracy", "black", "margin", error)
    (line, _, (bars,)), *_ = axis.containers
    assert line.get_xdata().tolist() == [1, 4]
    assert line.get_ydata().tolist() == pytest.approx(heights)
    assert [end[1] for end in bars.get_segments()[0]] == pytest.approx(first_bar)
    assert len(axis.lines) == 1


def test_puzzles_show_the_accuracy_at_most_calls_and_the_error(figures):
    rows = [row(1, 0.2), row(1, 0.3, "stochastic"), row(4, 0.6), row(9, 0.5, causal=True)]
    draw_puzzles(rows, "sudoku", PATH)
    by_strategy, by_calls = figures[0].axes
    assert [text.get_text() for text in by_strategy.texts] == ["60.0%", "30.0%", "50.0%"]
    assert len(by_strategy.get_yticklabels()) == 2
    assert by_strategy.get_yticklabels()[-1].get_text() == "left to right"
    lines = [container[0] for container in by_calls.containers]
    assert [line.get_ydata().tolist() for line in lines] == [pytest.approx(y) for y in ([0.8, 0.4], [0.7], [0.5])]
    assert lines[2].get_color() == INK
    (level,) = [line for line in by_calls.lines if line.get_alpha() == 0.5]
    assert level.get_ydata() == pytest.approx([0.5, 0.5]), "an autoregressive model is also a level"


def test_code_has_a_panel_for_each_rate_and_kind_and_a_legend_that_fits(figures):
    names = ("uniform", "left_to_right", "confidence")
    rows = [row(1, 0.5, rule, strategy=name, kind=kind) for name in names for rule in MARKERS for kind in ("line",)]
    rows += [row(8, 0.4, rule, causal=True, kind="line") for rule in MARKERS]
    draw_code([*rows, row(3, 0.7, kind="lines")], PATH)
    (figure,) = figures
    assert [panel.get_title("left") for panel in figure.axes] == ["line", "lines", "", ""]
    assert [panel.get_ylabel() for panel in figure.axes[::2]] == ["functions that parse", "blanks filled exactly"]
    assert [len(panel.containers) for panel in figure.axes] == [8, 1, 8, 1]
    assert figure.axes[1].containers[0][0].get_ydata().tolist() == [0.7]
    assert figure.axes[3].containers[0][0].get_ydata().tolist() == [0.0]
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
