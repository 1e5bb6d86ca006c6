"""The curves of runs: loss and validation, cross-entropy by mask rate, gradient norm, learning rate and speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import yaml

from unmask.errors import UnmaskError
from unmask.plots.style import GREY, colour, dashes, drawing, legend, write_figure
from unmask.training.log import LOG, read_log

Axis = Literal["steps", "tokens", "seconds"]
Values = npt.NDArray[np.float64]

FEW = 8
"""So few points are drawn as dots and are not smoothed."""
SMOOTHING = 40
"""A smoothed curve has about so many independent points."""


@dataclass(frozen=True)
class RunSeries:
    """What a run has logged: training lines, validations and advice. `recipe` is empty where its file is missing."""

    name: str
    path: Path
    trained: list[dict[str, Any]]
    validated: list[dict[str, Any]]
    advised: list[dict[str, Any]]
    recipe: dict[str, Any]

    def train(self, key: str) -> Values:
        """One number of every training line; NaN where it has none."""
        return _column(self.trained, key)

    def validation(self, key: str) -> Values:
        """One number of every validation; NaN where it is not known."""
        return _column([record["validation"] for record in self.validated], key)

    @cached_property
    def cross_entropy(self) -> Values:
        """[lines, buckets] bits per masked token by mask rate; NaN where nothing fell into a bucket."""
        table = [[math.nan if x is None else x for x in record["cross_entropy"]] for record in self.trained]
        return np.array(table, dtype=np.float64) / math.log(2.0)

    @property
    def has_mask_rates(self) -> bool:
        """Whether anything was ever masked; a left-to-right model masks nothing."""
        return bool(np.isfinite(self.cross_entropy).any())

    @property
    def clip(self) -> float | None:
        """The gradient norm that steps were cut to."""
        return self.recipe.get("optimizer", {}).get("clip")

    def x(self, records: Sequence[dict[str, Any]], axis: Axis) -> Values:
        """Where records stand on an axis."""
        steps = _column(records, "step")
        if axis == "seconds":
            return np.interp(steps, self.train("step"), self.train("seconds"))
        return steps * self._tokens_per_step if axis == "tokens" else steps

    def summary(self) -> dict[str, Any]:
        """The last and the best values of a run, for JSON."""
        last = {key: value for key, value in self.trained[-1].items() if key not in ("step", "cross_entropy")}
        best = {"bits_per_token": _best(self.trained, self.train("bits_per_token"))}
        if self.validated:
            last["validation"] = self.validated[-1]["validation"]
            best["validation"] = _best(self.validated, self.validation("bits_per_token"))
        return {
            "name": self.name,
            "path": str(self.path),
            "steps": self.trained[-1]["step"],
            "last": last,
            "best": best,
            "advice": self.advised,
        }

    @property
    def _tokens_per_step(self) -> int:
        try:
            return self.recipe["training"]["batch_size"] * self.recipe["data"]["length"]
        except KeyError:
            raise UnmaskError(
                f"'{self.path}' has no recipe.yaml that says how many tokens a step has; draw it with --x steps."
            ) from None


def read_run(path: Path, name: str | None = None) -> RunSeries:
    """The series of a run folder."""
    if not (path / LOG).is_file():
        raise UnmaskError(f"There is no {LOG} in '{path}'; give a folder that 'unmask train' wrote.")
    try:
        records = read_log(path)
        recipe = path / "recipe.yaml"
        values = yaml.safe_load(recipe.read_text(encoding="utf-8")) if recipe.is_file() else {}
    except (ValueError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise UnmaskError(f"The log or the recipe in '{path}' cannot be read ({reason}); restore it.") from error
    trained = [record for record in records if "loss" in record]
    if not trained:
        raise UnmaskError(f"The log in '{path}' has no training line yet; wait for training.log_every steps.")
    validated = [record for record in records if "validation" in record]
    advised = [record for record in records if "advice" in record]
    return RunSeries(name or path.name, path, trained, validated, advised, values)


def read_runs(paths: Sequence[Path]) -> list[RunSeries]:
    """Several runs, named by their folders; folders of one name are told apart by the path before it."""
    resolved = [path.resolve() for path in paths]
    names = [path.name for path in resolved]
    unique = [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
    return [read_run(path, name) for path, name in zip(paths, unique, strict=True)]


def smooth(values: Values) -> Values:
    """A centred mean with Gaussian weights; at the ends, over what is there. It lags behind nothing."""
    if len(values) < FEW:
        return values
    width = max(0.5, len(values) / SMOOTHING)
    distance = np.arange(-math.ceil(3 * width), math.ceil(3 * width) + 1)
    kernel = np.exp(-0.5 * (distance / width) ** 2)
    known = np.isfinite(values)
    weight = _convolved(known.astype(np.float64), kernel)
    total = _convolved(np.where(known, values, 0.0), kernel)
    return np.divide(total, weight, out=np.full(len(values), math.nan), where=weight > 0)


def _convolved(values: Values, kernel: Values) -> Values:
    half = len(kernel) // 2
    return np.convolve(values, kernel)[half : half + len(values)]


def _column(records: Sequence[dict[str, Any]], key: str) -> Values:
    values = [record.get(key) for record in records]
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _best(records: Sequence[dict[str, Any]], values: Values) -> dict[str, float]:
    lowest = int(np.nanargmin(values))
    return {"step": records[lowest]["step"], "bits_per_token": float(values[lowest])}


SIZE = (9.0, 5.4)
SETTLED = 0.15
"""The part of a run whose steep fall may leave the frame."""
DODGE = 0.006
LABELS: dict[Axis, str] = {"steps": "step", "tokens": "tokens seen, pads included", "seconds": "seconds"}


def draw_runs(runs: Sequence[RunSeries], path: Path, axis: Axis = "steps") -> None:
    """Draw one run, or several over one another, into a picture."""
    with drawing() as plt:
        figure = plt.figure(figsize=SIZE, layout="constrained")
        masked = [(number, run) for number, run in enumerate(runs) if run.has_mask_rates]
        top = "LLLLLLLCCCCC" if masked else "LLLLLLLLLLLL"
        panels = figure.subplot_mosaic([list(top), list("GGGGRRRRTTTT")], height_ratios=[2, 1])
        _draw_loss(panels["L"], runs, axis)
        if len(runs) == 1 and masked:
            _draw_cross_entropy_over_time(panels["C"], runs[0], axis)
        elif masked:
            _draw_cross_entropy_by_rate(panels["C"], masked)
        _draw_gradients(panels["G"], runs, axis)
        _draw_plain(panels["R"], runs, axis, "learning_rate", "Learning rate")
        _draw_plain(panels["T"], runs, axis, "tokens_per_second", "Speed, tokens per second")
        panels["T"].yaxis.set_major_formatter(_short_numbers())
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.05)
        write_figure(figure, path)
        plt.close(figure)


def _draw_loss(panel: Any, runs: Sequence[RunSeries], axis: Axis) -> None:
    """Training as it was logged (faint) and smoothed, validation as dots with both their errors."""
    alone = len(runs) == 1
    span = max(run.x(run.trained, axis)[-1] for run in runs)
    for number, run in enumerate(runs):
        x, bits = run.x(run.trained, axis), run.train("bits_per_token")
        _line(panel, x, bits, number, alpha=0.3, linewidth=0.8)
        _line(panel, x, smooth(bits), number, label=f"{run.name}, training" if alone else run.name)
        # Validations of several runs fall on the same steps: each run's stand a little beside the others'.
        x = run.x(run.validated, axis) + DODGE * span * (number - (len(runs) - 1) / 2)
        _draw_validation(panel, run, x, colour(1 if alone else number), "validation" if alone else None)
    panel.set_title("Bound, bits per token" if any(run.has_mask_rates for run in runs) else "Loss, bits per token")
    if any(run.validated for run in runs):
        note = "bars: error of the draws (thick), of the data (thin)"
        panel.set_title(note if alone else f"dots: validation; {note}", loc="right", fontsize=6.5, color=GREY)
    panel.set_ylim(*_settled_range(runs))
    legend(panel.figure, "outside upper left", 4, *panel.get_legend_handles_labels())
    _finish(panel, axis)


def _draw_validation(panel: Any, run: RunSeries, x: Values, ink: str, label: str | None) -> None:
    bits = run.validation("bits_per_token")
    for error, width in (("data", 0.8), ("mc", 2.6)):
        spread = np.nan_to_num(run.validation(f"bits_per_token_{error}_stderr"))
        panel.vlines(x, bits - spread, bits + spread, color=ink, linewidth=width, zorder=3)
    if len(x):
        panel.plot(x, bits, "o", color=ink, markersize=3.6, label=label, zorder=4)


def _draw_cross_entropy_over_time(panel: Any, run: RunSeries, axis: Axis) -> None:
    """One line for each bucket of mask rate, from dark (little is masked) to light."""
    from matplotlib import cm, colors

    x, table = run.x(run.trained, axis), run.cross_entropy
    shades = colors.ListedColormap(cm.viridis(np.linspace(0.0, 0.9, table.shape[1])))
    for bucket in range(table.shape[1]):
        marker = "o" if len(x) < FEW else ""
        panel.plot(x, smooth(table[:, bucket]), marker=marker, markersize=3, color=shades(bucket), linewidth=1.0)
    panel.set_ylim(*_padded(np.concatenate([_settled(x, smooth(column)) for column in table.T])))
    panel.set_title("Cross-entropy by mask rate, bits per masked token")
    scale = cm.ScalarMappable(colors.Normalize(0, 1), shades)
    bar = panel.figure.colorbar(scale, ax=panel, ticks=[0, 0.5, 1], aspect=30, pad=0.02)
    bar.ax.set_yticklabels(["0", "mask\nrate", "1"])
    bar.outline.set_visible(False)
    _finish(panel, axis)


def _draw_cross_entropy_by_rate(panel: Any, runs: Sequence[tuple[int, RunSeries]]) -> None:
    """Where runs stand at the end of their smoothed curves."""
    for number, run in runs:
        table = run.cross_entropy
        last = np.array([smooth(column)[-1] for column in table.T])
        middle = (np.arange(len(last)) + 0.5) / len(last)
        panel.plot(middle, last, color=colour(number), linestyle=dashes(number), marker="o", markersize=3.2)
    panel.set_title("Cross-entropy at the end, bits per masked token")
    panel.set_xlim(0, 1)
    panel.set_xlabel("mask rate")


def _draw_gradients(panel: Any, runs: Sequence[RunSeries], axis: Axis) -> None:
    for number, run in enumerate(runs):
        _line(panel, run.x(run.trained, axis), run.train("grad_norm"), number, linewidth=0.9)
    clips = {run.clip for run in runs}
    if len(clips) == 1 and (clip := clips.pop()) is not None:
        panel.axhline(clip, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        panel.annotate(
            "clipped above", (1, clip), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
            ha="right", fontsize=7, color=GREY,
        )  # fmt: skip
    panel.set_yscale("log")
    panel.set_title("Gradient norm")
    _plain_decades(panel.yaxis)
    _finish(panel, axis)


def _draw_plain(panel: Any, runs: Sequence[RunSeries], axis: Axis, key: str, title: str) -> None:
    for number, run in enumerate(runs):
        _line(panel, run.x(run.trained, axis), run.train(key), number)
    panel.set_ylim(0, 1.1 * max(np.nanmax(run.train(key)) for run in runs))
    panel.set_title(title)
    panel.yaxis.set_major_formatter("{x:g}")
    _finish(panel, axis)


def _line(panel: Any, x: Values, y: Values, number: int, **options: Any) -> None:
    marker = "o" if len(x) < FEW else ""
    style = {"color": colour(number), "linestyle": dashes(number), "marker": marker, "markersize": 3}
    panel.plot(x, y, **{**style, **options})


def _finish(panel: Any, axis: Axis) -> None:
    panel.set_xlim(left=0)
    panel.set_xlabel(LABELS[axis])
    panel.xaxis.set_major_formatter(_short_numbers())
    panel.xaxis.get_major_locator().set_params(nbins=6)


def _short_numbers() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")


def _plain_decades(axis: Any) -> None:
    """0.5, 1, 2, 5, 10 ... on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def _settled_range(runs: Sequence[RunSeries]) -> tuple[float, float]:
    """What the loss panel shows: all that is smooth or validated, and nearly all that is not."""
    values = []
    for run in runs:
        bits = _settled(run.train("step"), run.train("bits_per_token"))
        smoothed = _settled(run.train("step"), smooth(run.train("bits_per_token")))
        values += [np.nanquantile(bits, [0.02, 0.98]), smoothed, run.validation("bits_per_token")]
    return _padded(np.concatenate(values))


def _settled(x: Values, values: Values) -> Values:
    """Values after the first steep fall."""
    return values[x >= SETTLED * x[-1]] if len(x) >= FEW else values


def _padded(values: Values) -> tuple[float, float]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    room = max(0.06 * (high - low), 0.005 * abs(high))
    return low - room, high + room
