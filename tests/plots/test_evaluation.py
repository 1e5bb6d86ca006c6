"""Figures of evaluations: the frontier of generation, puzzles and code."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.evaluation.generation import GenerationResult, TextKind
from unmask.evaluation.statistics import Estimate
from unmask.evaluation.tasks import TaskResult, TokenRule
from unmask.plots.evaluation import MARKERS, draw_code, draw_frontier, draw_line, draw_puzzles
from unmask.plots.style import INK, open_figure

PATH = Path("unused.png")


def judged(
    name: str,
    perplexity: Estimate | None,
    entropy: Estimate,
    calls: float | None = None,
    steps: int | None = None,
    kind: TextKind = "samples",
) -> GenerationResult:
    calls_estimate = None if calls is None else Estimate(calls)
    metrics = {"perplexity": perplexity, "entropy": entropy, "calls": calls_estimate}
    return GenerationResult(name, kind, 4, 0, metrics, steps=steps)


def test_the_figure_shows_the_rows(figures):
    data = judged("held-out data", Estimate(6.0, 5.0, 7.0), Estimate(4.0, 3.9, 4.1), kind="data")
    eight = judged("mdlm", Estimate(8.0, 7.0, 10.0), Estimate(3.8, 3.7, 3.95), 8, 8)
    two = judged("mdlm", Estimate(20.0, 15.0, 30.0), Estimate(3.0, 2.9, 3.1), 2, 2)
    ar = judged("ar", Estimate(7.0), Estimate(3.9), 12)
    draw_frontier([data, eight, two, ar, judged("empty", None, Estimate(0.0), 1)], PATH)
    by_calls, by_entropy = figures[0].axes
    line = by_calls.containers[0].lines[0]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([2, 8], [20, 8]), "in the order of calls"
    assert by_calls.containers[1].lines[0].get_xdata().tolist() == [12]
    assert [one.get_ydata()[0] for one in by_calls.lines if one.get_linestyle() == "--"] == [6.0]
    horizontal, vertical = by_entropy.containers[1].lines[2]
    assert horizontal.get_segments()[0][:, 0] == pytest.approx([3.7, 3.95])
    assert vertical.get_segments()[0][:, 1] == pytest.approx([7.0, 10.0])
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["held-out data", "mdlm", "ar"]
    assert [text.get_text() for text in by_entropy.texts] == ["", "T=8", "T=2", ""]


def test_labels_overlap_no_line_and_no_bar(figures):
    eight = judged("model", Estimate(87.8, 53.9, 123), Estimate(3.46, 3.38, 3.52), 8, 8)
    sixteen = judged("model", Estimate(40.8, 9.52, 207), Estimate(3.468, 3.40, 3.54), 16, 16)
    draw_frontier([eight, sixteen], PATH)
    panel = figures[0].axes[1]
    figures[0].draw_without_rendering()
    assert [label.get_text() for label in panel.texts] == ["T=8", "T=16"]
    bars = [path for collection in panel.collections for path in collection.get_paths()]
    for path in (panel.lines[0].get_path(), *bars):
        stroke = panel.transData.transform_path(path)
        assert not any(stroke.intersects_bbox(label.get_window_extent(), filled=False) for label in panel.texts)


def test_only_the_ends_of_a_curve_are_labelled_and_texts_from_files_have_no_calls(figures):
    draw_frontier([judged("model", Estimate(9.0 - n), Estimate(4.0), n, n) for n in (2, 4, 8)], PATH)
    draw_frontier([judged("texts", Estimate(9.0, 8.0, 10.0), Estimate(4.0, 3.9, 4.1), kind="texts")], PATH)
    assert [text.get_text() for text in figures[0].axes[1].texts] == ["T=2", "T=8"]
    assert list(figures[1].axes[0].get_xticks()) == []


def test_repeated_colours_have_other_markers(figures):
    draw_frontier([judged(f"model {n}", Estimate(9.0), Estimate(4.0), 2.0) for n in range(14)], PATH)
    points = [container[0] for container in figures[0].axes[1].containers]
    assert len({(point.get_color(), point.get_markerfacecolor()) for point in points}) == 14


def solved(calls: float, share: float, rule: TokenRule = "greedy", causal: bool = False, **options) -> TaskResult:
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
        draw_line(axis, [solved(4, 0.6), solved(1, 0.2)], "accuracy", "black", "margin", error)
    (line, _, (bars,)), *_ = axis.containers
    assert line.get_xdata().tolist() == [1, 4]
    assert line.get_ydata().tolist() == pytest.approx(heights)
    assert [end[1] for end in bars.get_segments()[0]] == pytest.approx(first_bar)
    assert len(axis.lines) == 1


def test_puzzles_show_the_accuracy_at_most_calls_and_the_error(figures):
    rows = [solved(1, 0.2), solved(1, 0.3, "stochastic"), solved(4, 0.6), solved(9, 0.5, causal=True)]
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
    rows = [solved(1, 0.5, rule, strategy=name, kind=kind) for name in names for rule in MARKERS for kind in ("line",)]
    rows += [solved(8, 0.4, rule, causal=True, kind="line") for rule in MARKERS]
    draw_code([*rows, solved(3, 0.7, kind="lines")], PATH)
    (figure,) = figures
    assert [panel.get_title("left") for panel in figure.axes] == ["line", "lines", "", ""]
    assert [panel.get_ylabel() for panel in figure.axes[::2]] == ["functions that parse", "blanks filled exactly"]
    assert [len(panel.containers) for panel in figure.axes] == [8, 1, 8, 1]
    assert figure.axes[1].containers[0][0].get_ydata().tolist() == [0.7]
    assert figure.axes[3].containers[0][0].get_ydata().tolist() == [0.0]
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
