"""The frontier of generation: judge perplexity against network calls and against entropy, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unmask.plots.style import GREY, INK, colour, dashes, drawing, legend, write_figure

SIZE = (8.4, 3.6)
CORNERS = ((5, 4), (5, -4), (-5, 4), (-5, -4))
"""Where a label may stand beside its point, in points, the first choice first."""

Interval = tuple[float, float | None, float | None]
"""A figure and the ends of its interval, where they are known."""


@dataclass(frozen=True)
class Point:
    """Some texts: what the judge says of them, their entropy and, where a model wrote them, its network calls."""

    perplexity: Interval
    entropy: Interval
    calls: Interval | None = None
    label: str = ""


@dataclass(frozen=True)
class Curve:
    """A model at its numbers of steps, or texts of another origin; `is_data` marks held-out text."""

    name: str
    points: Sequence[Point]
    is_data: bool = False


def draw_frontier(curves: Sequence[Curve], path: Path) -> None:
    """Draw both panels into a picture. Perplexity falls downwards on both, so lower is better to this judge."""
    with drawing() as plt:
        figure = plt.figure(figsize=SIZE, layout="constrained")
        by_calls, by_entropy = figure.subplots(1, 2, sharey=True)
        models = [curve for curve in curves if not curve.is_data]
        for curve in curves:
            look = {"color": INK} if curve.is_data else _look(models.index(curve))
            _draw_calls(by_calls, curve, look)
            _draw_entropy(by_entropy, curve, look)
        _finish(by_calls, "Judge perplexity against network calls", "network calls a text")
        _finish(by_entropy, "Judge perplexity against entropy", "unigram entropy of a text, nats")
        if any(point.calls for curve in curves for point in curve.points):
            by_calls.set_xscale("log", base=2)
            _plain(by_calls.xaxis, 2.0)
        else:
            by_calls.set_xticks([])
        by_calls.set_yscale("log")
        _plain(by_calls.yaxis, 10.0)
        by_entropy.set_title("bars: 95% intervals", loc="right", fontsize=6.5, color=GREY)
        legend(figure, "outside upper left", 4, *by_entropy.get_legend_handles_labels())
        _name_ends(by_entropy, curves)
        write_figure(figure, path)
        plt.close(figure)


def _look(number: int) -> dict[str, str]:
    """Of the n-th model: where colours come again, lines are broken and dots are empty."""
    line = dashes(number)
    return {"color": colour(number), "linestyle": line, "markerfacecolor": colour(number) if line == "-" else "white"}


def _draw_calls(panel: Any, curve: Curve, look: dict[str, str]) -> None:
    """A line through the numbers of steps; held-out data, which took no calls, as a level with its interval."""
    if curve.is_data:
        for point in curve.points:
            value, low, high = point.perplexity
            panel.axhline(value, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
            if low is not None:
                panel.axhspan(low, high, color=INK, alpha=0.08, linewidth=0, zorder=0)
        return
    points = sorted((point for point in curve.points if point.calls), key=lambda point: point.calls or ())
    _dots(panel, [point.calls for point in points if point.calls], points, **look)


def _draw_entropy(panel: Any, curve: Curve, look: dict[str, str]) -> None:
    _dots(panel, [point.entropy for point in curve.points], curve.points, label=curve.name, **look)


def _name_ends(panel: Any, curves: Sequence[Curve]) -> None:
    """Say the steps at both ends of each line (between them there may be a dozen), where there is room for it."""
    panel.figure.draw_without_rendering()
    strokes = _strokes(panel)
    taken: list[Any] = []
    for curve in curves:
        for point in (*curve.points[:1], *curve.points[1:][-1:]):
            for corner in CORNERS:
                label = _label(panel, point, corner)
                place = label.get_window_extent()
                if _is_clear(panel, place, strokes) and not any(place.overlaps(other) for other in taken):
                    taken.append(place)
                    break
                label.remove()


def _label(panel: Any, point: Point, corner: tuple[int, int]) -> Any:
    right, above = corner[0] > 0, corner[1] > 0
    return panel.annotate(
        point.label, (point.entropy[0], point.perplexity[0]), xytext=corner, textcoords="offset points", fontsize=6.5,
        color=GREY, ha="left" if right else "right", va="bottom" if above else "top",
    )  # fmt: skip


def _strokes(panel: Any) -> list[Any]:
    """Paths of the lines and of the bars of a panel, in pixels."""
    bars = [path for some in panel.collections for path in some.get_paths()]
    return [panel.transData.transform_path(path) for path in (*(line.get_path() for line in panel.lines), *bars)]


def _is_clear(panel: Any, place: Any, strokes: Sequence[Any]) -> bool:
    """Whether a label lies inside its panel and on no line."""
    inside = panel.bbox.contains(place.x0, place.y0) and panel.bbox.contains(place.x1, place.y1)
    return inside and not any(stroke.intersects_bbox(place, filled=False) for stroke in strokes)


def _dots(panel: Any, x: Sequence[Interval], points: Sequence[Point], **look: Any) -> None:
    y = [point.perplexity for point in points]
    style = {"linewidth": 1.1, "elinewidth": 0.9, "markersize": 3.8, "marker": "o", "zorder": 3}
    panel.errorbar(_values(x), _values(y), xerr=_bars(x), yerr=_bars(y), **style, **look)


def _values(intervals: Sequence[Interval]) -> list[float]:
    return [value for value, _, _ in intervals]


def _bars(intervals: Sequence[Interval]) -> npt.NDArray[np.float64]:
    """[2, n] how far each interval reaches below and above; 0 where it is not known."""
    below = [0.0 if low is None else max(0.0, value - low) for value, low, _ in intervals]
    above = [0.0 if high is None else max(0.0, high - value) for value, _, high in intervals]
    return np.array([below, above])


def _finish(panel: Any, title: str, label: str) -> None:
    panel.set_title(title)
    panel.set_xlabel(label)


def _plain(axis: Any, base: float) -> None:
    """Plain numbers on a logarithmic axis: powers of two, or 1, 2, 5, 10 ..."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base, subs=(1.0,) if base == 2 else (1.0, 2.0, 5.0), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")
