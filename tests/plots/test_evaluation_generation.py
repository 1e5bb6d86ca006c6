"""The frontier of generation: points, intervals and labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.evaluation.generation import GenerationResult, TextKind
from unmask.evaluation.statistics import Estimate
from unmask.plots.evaluation import draw_frontier

PATH = Path("unused.png")


def row(
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
    data = row("held-out data", Estimate(6.0, 5.0, 7.0), Estimate(4.0, 3.9, 4.1), kind="data")
    eight = row("mdlm", Estimate(8.0, 7.0, 10.0), Estimate(3.8, 3.7, 3.95), 8, 8)
    two = row("mdlm", Estimate(20.0, 15.0, 30.0), Estimate(3.0, 2.9, 3.1), 2, 2)
    ar = row("ar", Estimate(7.0), Estimate(3.9), 12)
    draw_frontier([data, eight, two, ar, row("empty", None, Estimate(0.0), 1)], PATH)
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
    eight = row("model", Estimate(87.8, 53.9, 123), Estimate(3.46, 3.38, 3.52), 8, 8)
    sixteen = row("model", Estimate(40.8, 9.52, 207), Estimate(3.468, 3.40, 3.54), 16, 16)
    draw_frontier([eight, sixteen], PATH)
    panel = figures[0].axes[1]
    figures[0].draw_without_rendering()
    assert [label.get_text() for label in panel.texts] == ["T=8", "T=16"]
    bars = [path for collection in panel.collections for path in collection.get_paths()]
    for path in (panel.lines[0].get_path(), *bars):
        stroke = panel.transData.transform_path(path)
        assert not any(stroke.intersects_bbox(label.get_window_extent(), filled=False) for label in panel.texts)


def test_only_the_ends_of_a_curve_are_labelled_and_texts_from_files_have_no_calls(figures):
    draw_frontier([row("model", Estimate(9.0 - n), Estimate(4.0), n, n) for n in (2, 4, 8)], PATH)
    draw_frontier([row("texts", Estimate(9.0, 8.0, 10.0), Estimate(4.0, 3.9, 4.1), kind="texts")], PATH)
    assert [text.get_text() for text in figures[0].axes[1].texts] == ["T=2", "T=8"]
    assert list(figures[1].axes[0].get_xticks()) == []


def test_repeated_colours_have_other_markers(figures):
    draw_frontier([row(f"model {n}", Estimate(9.0), Estimate(4.0), 2.0) for n in range(14)], PATH)
    points = [container[0] for container in figures[0].axes[1].containers]
    assert len({(point.get_color(), point.get_markerfacecolor()) for point in points}) == 14
