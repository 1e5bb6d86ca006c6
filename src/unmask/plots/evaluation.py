"""Figures of evaluations: judged samples (perplexity against calls and entropy), puzzles and code."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.plots.style import GREY, INK, colour, dashes, error_bars, legend, open_figure, plain_log_axis

if TYPE_CHECKING:
    from unmask.evaluation.generation import GenerationResult
    from unmask.evaluation.statistics import Estimate
    from unmask.evaluation.tasks import TaskResult

SIZE = (8.4, 3.6)
CORNERS = ((5, 4), (5, -4), (-5, 4), (-5, -4))
"""Offsets of a label from its point, in points, in order of preference."""
CODE_WIDTH, CODE_HEIGHT = 3.0, 2.5
CODE_RATES = {"parses": "functions that parse", "exact": "blanks filled exactly"}
MARKERS: dict[str, dict[str, Any]] = {
    "greedy": {"marker": "o"},
    "stochastic": {"marker": "D", "markerfacecolor": "white"},
}
OFFSETS = {"greedy": 0.12, "stochastic": -0.12}
"""Vertical offsets of the two token rules from the line of their strategy."""


# ---- generated texts -------------------------------------------------------------------------------------------------


def draw_frontier(rows: Sequence[GenerationResult], path: Path) -> None:
    """Draw the rows that have a perplexity; rows of the same name are one curve."""
    shown = [row for row in rows if row.metrics["perplexity"] is not None]
    curves = [list(curve) for _, curve in groupby(shown, key=lambda row: (row.name, row.kind))]
    with open_figure(path, SIZE) as figure:
        by_calls, by_entropy = figure.subplots(1, 2, sharey=True)
        models = [curve for curve in curves if curve[0].kind != "data"]
        for curve in curves:
            is_data = curve[0].kind == "data"
            style = {"color": INK} if is_data else _style(models.index(curve))
            if is_data:  # held-out texts took no calls
                for row in curve:
                    level = _estimate(row, "perplexity")
                    by_calls.axhline(level.value, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
                    if level.low is not None:
                        by_calls.axhspan(level.low, level.high, color=INK, alpha=0.08, linewidth=0, zorder=0)
            else:
                generated = [row for row in curve if row.metrics["calls"]]
                generated.sort(key=lambda row: _estimate(row, "calls").value)
                _draw_points(by_calls, generated, "calls", **style)
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


def _draw_points(panel: Any, rows: Sequence[GenerationResult], metric: str, **style: Any) -> None:
    x, y = ([_estimate(row, name) for row in rows] for name in (metric, "perplexity"))
    shape = {"linewidth": 1.1, "elinewidth": 0.9, "markersize": 3.8, "marker": "o", "zorder": 3}
    panel.errorbar([one.value for one in x], [one.value for one in y], error_bars(y), error_bars(x), **shape, **style)


def _label_ends(panel: Any, curves: Sequence[Sequence[GenerationResult]]) -> None:
    """Label both ends of each curve with their steps where the label overlaps no line, bar or other label."""
    panel.figure.draw_without_rendering()
    bars = [path for collection in panel.collections for path in collection.get_paths()]
    paths = [*(line.get_path() for line in panel.lines), *bars]
    strokes = [panel.transData.transform_path(path) for path in paths]
    taken: list[Any] = []
    for curve in curves:
        for row in (curve[0], curve[-1])[: len(curve)]:
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


# ---- puzzles and code ------------------------------------------------------------------------------------------------


def draw_puzzles(rows: Sequence[TaskResult], title: str, path: Path) -> None:
    """Draw the accuracy of every strategy at its most calls, and the error against calls."""
    series = _series(rows)
    names = list(dict.fromkeys(name for name, _ in series))
    rules = [rule for rule in MARKERS if any(rule == other for _, other in series)]
    with open_figure(path, SIZE) as figure:
        by_strategy, by_calls = figure.subplots(1, 2)
        for (name, rule), results in series.items():
            ink = _ink(results, names.index(name))
            height = len(names) - 1 - names.index(name) + (OFFSETS[rule] if len(rules) > 1 else 0.0)
            full = max(results, key=lambda row: row.metrics["calls"].value).metrics["accuracy"]
            by_strategy.errorbar(
                [full.value], [height], xerr=error_bars([full]), color=ink, markersize=4.5, **MARKERS[rule]
            )
            by_strategy.annotate(
                f"{full.value:.1%}", (full.high, height), xytext=(4, -2.5), textcoords="offset points", fontsize=6.5
            )
            draw_line(by_calls, results, "accuracy", ink, name, error=True)
        by_strategy.set_yticks(range(len(names)), reversed(names))
        by_strategy.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
        by_strategy.set(xlim=(-0.02, 1.12), ylim=(-0.6, len(names) - 0.4))
        by_strategy.set_title(f"{title}: items solved, most calls")
        words = {"greedy": "filled: greedy", "stochastic": "open: stochastic"}
        by_strategy.set_xlabel(", ".join(words[rule] for rule in rules) + "; bars: 95% intervals")
        _count_calls(by_calls)
        by_calls.set(ylim=(-0.03, 1.03), xlabel="network calls per item")
        by_calls.set_title("Sequence error against network calls")
        if any(row.causal for row in rows):
            by_calls.set_title("line: autoregressive", loc="right", fontsize=6.5, color=GREY)
        legend(figure, "outside lower center", 7, *by_calls.get_legend_handles_labels(), fontsize=7)


def draw_code(rows: Sequence[TaskResult], path: Path) -> None:
    """Draw a line of panels for each rate and a column for each kind of blank, against calls."""
    from matplotlib.ticker import PercentFormatter

    kinds = {row.kind: [other for other in rows if other.kind == row.kind] for row in rows}
    names = list(dict.fromkeys(name for results in kinds.values() for name, _ in _series(results)))
    size = (max(2, len(kinds)) * CODE_WIDTH, len(CODE_RATES) * CODE_HEIGHT + 0.4)
    with open_figure(path, size) as figure:
        panels = figure.subplots(len(CODE_RATES), len(kinds), squeeze=False, sharex="col", sharey="row")
        for line, (rate, description) in zip(panels, CODE_RATES.items(), strict=True):
            line[0].set_ylabel(description)
            for panel, results in zip(line, kinds.values(), strict=True):
                for (name, rule), some in _series(results).items():
                    label = name if rule == "greedy" else f"{name}, {rule}"
                    draw_line(panel, some, rate, _ink(some, names.index(name)), label)
                _count_calls(panel)
                panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        for top, bottom, kind in zip(panels[0], panels[-1], kinds, strict=True):
            top.set_title(kind)
            bottom.set_xlabel("network calls per blank")
        legend(figure, "outside lower center", 7, *panels[0][0].get_legend_handles_labels(), fontsize=7)


def draw_line(panel: Any, results: Sequence[TaskResult], rate: str, ink: str, label: str, error: bool = False) -> None:
    """A rate of a strategy, or with `error` 1 - rate, against calls; an autoregressive model also has a level."""
    results = sorted(results, key=lambda row: row.metrics["calls"].value)
    rates = [row.metrics[rate] for row in results]
    values = [1 - one.value if error else one.value for one in rates]
    style = "-" if results[0].rule == "greedy" else dashes(7)
    if results[0].causal:
        panel.axhline(values[-1], color=ink, linewidth=0.9, linestyle=style, zorder=1, alpha=0.5)
    bars = error_bars(rates)
    panel.errorbar(
        [row.metrics["calls"].value for row in results], values, yerr=bars[::-1] if error else bars, markersize=3.5,
        color=ink, linestyle=style, elinewidth=0.8, label=label, **MARKERS[results[0].rule],
    )  # fmt: skip


def _series(rows: Sequence[TaskResult]) -> dict[tuple[str, str], list[TaskResult]]:
    """Rows by the name of the strategy and the token rule."""
    series: dict[tuple[str, str], list[TaskResult]] = {}
    for row in rows:
        name = "autoregressive" if row.causal else row.strategy.replace("_", " ")
        series.setdefault((name, row.rule), []).append(row)
    return series


def _ink(results: Sequence[TaskResult], number: int) -> str:
    return INK if results[0].causal else colour(number)


def _count_calls(panel: Any) -> None:
    panel.set_xscale("log", base=2)
    plain_log_axis(panel.xaxis, 2.0, numticks=12)
