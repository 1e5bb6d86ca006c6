"""The frontier of generation: judge perplexity against network calls and against entropy, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.plots.style import GREY, INK, colour, dashes, error_bars, legend, open_figure, plain_log_axis

if TYPE_CHECKING:
    from unmask.evaluation.generation import GenerationResult
    from unmask.evaluation.statistics import Estimate

SIZE = (8.4, 3.6)
CORNERS = ((5, 4), (5, -4), (-5, 4), (-5, -4))
"""Offsets of a label from its point, in points, in order of preference."""


def draw_frontier(rows: Sequence[GenerationResult], path: Path) -> None:
    """Draw the rows that have a perplexity; rows of the same name are one curve."""
    shown = [row for row in rows if row.metrics["perplexity"] is not None]
    curves = [list(curve) for _, curve in groupby(shown, key=lambda row: (row.name, row.kind))]
    with open_figure(path, SIZE) as figure:
        by_calls, by_entropy = figure.subplots(1, 2, sharey=True)
        models = [curve for curve in curves if curve[0].kind != "data"]
        for curve in curves:
            style = {"color": INK} if curve[0].kind == "data" else _style(models.index(curve))
            if curve[0].kind == "data":
                _draw_levels(by_calls, curve)
            else:
                generated = [row for row in curve if row.metrics["calls"]]
                _draw_points(
                    by_calls, sorted(generated, key=lambda row: _estimate(row, "calls").value), "calls", **style
                )
            _draw_points(by_entropy, curve, "entropy", label=curve[0].name, **style)
        by_calls.set(title="Judge perplexity against network calls", xlabel="network calls per text", yscale="log")
        by_entropy.set(title="Judge perplexity against entropy", xlabel="unigram entropy per text, nats")
        by_entropy.set_title("bars: 95% intervals", loc="right", fontsize=6.5, color=GREY)
        if any(row.metrics["calls"] for row in shown):
            by_calls.set_xscale("log", base=2)
            plain_log_axis(by_calls.xaxis, 2.0, numticks=12)
        else:
            by_calls.set_xticks([])
        plain_log_axis(by_calls.yaxis, 10.0, numticks=12)
        legend(figure, "outside upper left", 4, *by_entropy.get_legend_handles_labels())
        _label_ends(by_entropy, curves)


def _style(number: int) -> dict[str, str]:
    """The style of the n-th model: dashed lines and open markers when the colours repeat."""
    line = dashes(number)
    return {"color": colour(number), "linestyle": line, "markerfacecolor": colour(number) if line == "-" else "white"}


def _estimate(row: GenerationResult, name: str) -> Estimate:
    estimate = row.metrics[name]
    assert estimate is not None
    return estimate


def _draw_levels(panel: Any, rows: Sequence[GenerationResult]) -> None:
    """Held-out data took no calls: a horizontal line with its interval."""
    for row in rows:
        perplexity = _estimate(row, "perplexity")
        panel.axhline(perplexity.value, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        if perplexity.low is not None:
            panel.axhspan(perplexity.low, perplexity.high, color=INK, alpha=0.08, linewidth=0, zorder=0)


def _draw_points(panel: Any, rows: Sequence[GenerationResult], metric: str, **style: Any) -> None:
    x, y = ([_estimate(row, name) for row in rows] for name in (metric, "perplexity"))
    shape = {"linewidth": 1.1, "elinewidth": 0.9, "markersize": 3.8, "marker": "o", "zorder": 3}
    panel.errorbar([one.value for one in x], [one.value for one in y], error_bars(y), error_bars(x), **shape, **style)


def _label_ends(panel: Any, curves: Sequence[Sequence[GenerationResult]]) -> None:
    """Label both ends of each curve with their steps, where the label overlaps no line, bar or other label."""
    panel.figure.draw_without_rendering()
    bars = [path for collection in panel.collections for path in collection.get_paths()]
    paths = [*(line.get_path() for line in panel.lines), *bars]
    strokes = [panel.transData.transform_path(path) for path in paths]
    taken: list[Any] = []
    for curve in curves:
        for row in (*curve[:1], *curve[1:][-1:]):
            for right, up in CORNERS:
                label = panel.annotate(
                    "" if row.steps is None else f"T={row.steps}",
                    (_estimate(row, "entropy").value, _estimate(row, "perplexity").value),
                    xytext=(right, up), textcoords="offset points", fontsize=6.5, color=GREY,
                    ha="left" if right > 0 else "right", va="bottom" if up > 0 else "top",
                )  # fmt: skip
                box = label.get_window_extent()
                inside = panel.bbox.contains(box.x0, box.y0) and panel.bbox.contains(box.x1, box.y1)
                crossed = any(stroke.intersects_bbox(box, filled=False) for stroke in strokes)
                if inside and not crossed and not any(box.overlaps(other) for other in taken):
                    taken.append(box)
                    break
                label.remove()
