"""Curves of training runs: loss and validation, cross-entropy by mask rate, gradient norm, learning rate and speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unmask.data.rows import TEXT_TOKENS
from unmask.errors import UnmaskError
from unmask.io import parse_yaml, unique_names
from unmask.plots.style import GREY, colour, dashes, legend, open_figure, plain_log_axis
from unmask.training.callbacks import LOG, read_log

Axis = Literal["steps", "tokens", "seconds"]
Values = npt.NDArray[np.float64]
Records = Sequence[dict[str, Any]]

SIZE = (9.0, 5.4)
LABELS: dict[Axis, str] = {"steps": "step", "tokens": "tokens, padding included", "seconds": "seconds"}
FEW = 8
"""Curves with fewer points are drawn with markers and are not smoothed."""
SMOOTHING = 40
"""Independent points of a smoothed curve, approximately."""
WARMUP = 0.15
"""The first part of a run, where the loss falls steeply and may leave the frame."""
DODGE = 0.006
"""Horizontal offset between the validation dots of several runs, as a fraction of the axis."""


@dataclass(frozen=True)
class RunSeries:
    """The log of a run: training lines, validations and advice. `recipe` is empty if there is none."""

    name: str
    path: Path
    trained: list[dict[str, Any]]
    validated: list[dict[str, Any]]
    advised: list[dict[str, Any]]
    recipe: dict[str, Any]

    def train(self, key: str) -> Values:
        """One value per training line; NaN where it is missing."""
        return _column(self.trained, key)

    def validation(self, key: str) -> Values:
        """One value per validation; NaN where it is missing."""
        return _column([record["validation"] for record in self.validated], key)

    @property
    def label(self) -> str:
        """The name, and a note if figures are per position, learned padding included, up to some step."""
        old = [record["step"] for record in self.trained if record.get("denominator") != TEXT_TOKENS]
        if not old:
            return self.name
        return f"{self.name} (per position{'' if len(old) == len(self.trained) else f' to step {old[-1]}'})"

    @cached_property
    def cross_entropy(self) -> Values:
        """[lines, buckets] bits per masked token by mask rate; NaN in empty buckets."""
        table = [[math.nan if x is None else x for x in record["cross_entropy"]] for record in self.trained]
        return np.array(table, dtype=np.float64) / math.log(2.0)

    @property
    def has_mask_rates(self) -> bool:
        """False for an autoregressive model."""
        return bool(np.isfinite(self.cross_entropy).any())

    def x(self, records: Records, axis: Axis) -> Values:
        """The positions of records on an axis."""
        steps = _column(records, "step")
        if axis == "steps":
            return steps
        if axis == "seconds":
            return np.interp(steps, self.train("step"), self.train("seconds"))
        try:
            return steps * self.recipe["training"]["batch_size"] * self.recipe["data"]["length"]
        except KeyError:
            raise UnmaskError(
                f"'{self.path}' has no recipe.yaml with the number of tokens per step; draw it with --x steps."
            ) from None

    def summary(self) -> dict[str, Any]:
        """The last and the best values of a run, for JSON."""
        last = {key: value for key, value in self.trained[-1].items() if key not in ("step", "cross_entropy")}
        best = {"bits_per_token": _best(self.trained, self.train("bits_per_token"))}
        if self.validated:
            last["validation"] = self.validated[-1]["validation"]
            best["validation"] = _best(self.validated, self.validation("bits_per_token"))
        steps = self.trained[-1]["step"]
        about = {"name": self.name, "path": str(self.path), "steps": steps}
        return {**about, "last": last, "best": best, "advice": self.advised}


def _column(records: Records, key: str) -> Values:
    values = [record.get(key) for record in records]
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _best(records: Records, values: Values) -> dict[str, float]:
    lowest = int(np.nanargmin(values))
    return {"step": records[lowest]["step"], "bits_per_token": float(values[lowest])}


def read_run(path: Path, name: str | None = None) -> RunSeries:
    """Read the log and the recipe of a run folder."""
    if not (path / LOG).is_file():
        raise UnmaskError(f"There is no {LOG} in '{path}'; give a folder that 'unmask train' wrote.")
    try:
        records = read_log(path)
        recipe = path / "recipe.yaml"
        values = parse_yaml(recipe.read_text(encoding="utf-8")) if recipe.is_file() else {}
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise UnmaskError(f"The log or recipe in '{path}' cannot be read ({reason}); restore it.") from error
    trained = [record for record in records if "loss" in record]
    if not trained:
        raise UnmaskError(f"The log in '{path}' has no training line yet; wait for training.log_every steps.")
    validated = [record for record in records if "validation" in record]
    advised = [record for record in records if "advice" in record]
    return RunSeries(name or path.name, path, trained, validated, advised, values)


def read_runs(paths: Sequence[Path]) -> list[RunSeries]:
    """Several runs, named by their folders; folders of the same name are named by their paths."""
    names = unique_names([path.resolve().name for path in paths], [str(path) for path in paths])
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


def smooth(values: Values) -> Values:
    """A centred Gaussian mean that ignores NaN; short series are returned unchanged."""
    if len(values) < FEW:
        return values
    width = max(0.5, len(values) / SMOOTHING)
    reach = math.ceil(3 * width)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    known = np.isfinite(values)
    padded = np.stack([known.astype(np.float64), np.where(known, values, 0.0)])
    weight, total = (np.convolve(row, kernel)[reach : reach + len(values)] for row in padded)
    return np.divide(total, weight, out=np.full(len(values), math.nan), where=weight > 0)


def draw_runs(runs: Sequence[RunSeries], path: Path, axis: Axis = "steps") -> None:
    """Draw the curves of one run, or compare several."""
    with open_figure(path, SIZE) as figure:
        masked = [(number, run) for number, run in enumerate(runs) if run.has_mask_rates]
        top = "LLLLLLLCCCCC" if masked else "LLLLLLLLLLLL"
        panels = figure.subplot_mosaic([list(top), list("GGGGRRRRTTTT")], height_ratios=[2, 1])
        _draw_loss(panels["L"], runs, axis)
        if len(runs) == 1 and masked:
            _draw_cross_entropy_over_time(panels["C"], runs[0], axis)
        elif masked:
            _draw_cross_entropy_by_rate(panels["C"], masked)
        _draw_gradients(panels["G"], runs, axis)
        for key, letter, title in (
            ("learning_rate", "R", "Learning rate"),
            ("tokens_per_second", "T", "Speed, tokens per second"),
        ):
            for number, run in enumerate(runs):
                _line(panels[letter], run.x(run.trained, axis), run.train(key), number)
            panels[letter].set_ylim(0, 1.1 * max(np.nanmax(run.train(key)) for run in runs))
            panels[letter].set_title(title)
            _finish(panels[letter], axis)
        panels["R"].yaxis.set_major_formatter("{x:g}")
        panels["T"].yaxis.set_major_formatter(_short_numbers())
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.04, hspace=0.05)


def _draw_loss(panel: Any, runs: Sequence[RunSeries], axis: Axis) -> None:
    """Training as logged (faint) and smoothed; validation as dots with Monte-Carlo and data errors."""
    alone = len(runs) == 1
    span = max(run.x(run.trained, axis)[-1] for run in runs)
    visible = []
    for number, run in enumerate(runs):
        x, bits = run.x(run.trained, axis), run.train("bits_per_token")
        _line(panel, x, bits, number, alpha=0.3, linewidth=0.8)
        _line(panel, x, smooth(bits), number, label=f"{run.label}, training" if alone else run.label)
        steps = run.train("step")
        settled = np.nanquantile(_after_warmup(steps, bits), [0.02, 0.98])
        visible += [settled, _after_warmup(steps, smooth(bits)), run.validation("bits_per_token")]
        # Validations of several runs fall on the same steps, so their dots are drawn side by side.
        x = run.x(run.validated, axis) + DODGE * span * (number - (len(runs) - 1) / 2)
        _draw_validation(panel, run, x, colour(1 if alone else number), "validation" if alone else None)
    panel.set_title("Bound, bits per token" if any(run.has_mask_rates for run in runs) else "Loss, bits per token")
    if any(run.validated for run in runs):
        note = "bars: Monte-Carlo error (thick), data error (thin)"
        panel.set_title(note if alone else f"dots: validation; {note}", loc="right", fontsize=6.5, color=GREY)
    panel.set_ylim(*_padded(np.concatenate(visible)))
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
    """One line per bucket of mask rates, from dark (low) to light (high)."""
    from matplotlib import cm, colors

    x, columns = run.x(run.trained, axis), [smooth(column) for column in run.cross_entropy.T]
    shades = colors.ListedColormap(cm.viridis(np.linspace(0.0, 0.9, len(columns))))
    for bucket, column in enumerate(columns):
        _line(panel, x, column, 0, color=shades(bucket), linewidth=1.0)
    panel.set_ylim(*_padded(np.concatenate([_after_warmup(x, column) for column in columns])))
    panel.set_title("Cross-entropy by mask rate, bits per masked token")
    scale = cm.ScalarMappable(colors.Normalize(0, 1), shades)
    bar = panel.figure.colorbar(scale, ax=panel, ticks=[0, 0.5, 1], aspect=30, pad=0.02)
    bar.ax.set_yticklabels(["0", "mask\nrate", "1"])
    bar.outline.set_visible(False)
    _finish(panel, axis)


def _draw_cross_entropy_by_rate(panel: Any, runs: Sequence[tuple[int, RunSeries]]) -> None:
    """The last values of the smoothed curves."""
    for number, run in runs:
        last = np.array([smooth(column)[-1] for column in run.cross_entropy.T])
        middle = (np.arange(len(last)) + 0.5) / len(last)
        panel.plot(middle, last, color=colour(number), linestyle=dashes(number), marker="o", markersize=3.2)
    panel.set_title("Cross-entropy at the end, bits per masked token")
    panel.set_xlim(0, 1)
    panel.set_xlabel("mask rate")


def _draw_gradients(panel: Any, runs: Sequence[RunSeries], axis: Axis) -> None:
    for number, run in enumerate(runs):
        _line(panel, run.x(run.trained, axis), run.train("grad_norm"), number, linewidth=0.9)
    clips = {run.recipe.get("optimizer", {}).get("clip") for run in runs}
    if len(clips) == 1 and (clip := clips.pop()) is not None:
        panel.axhline(clip, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        panel.annotate(
            "clipped above", (1, clip), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
            ha="right", fontsize=7, color=GREY,
        )  # fmt: skip
    panel.set_yscale("log")
    panel.set_title("Gradient norm")
    plain_log_axis(panel.yaxis, 10.0)
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


def _after_warmup(x: Values, values: Values) -> Values:
    return values[x >= WARMUP * x[-1]] if len(x) >= FEW else values


def _padded(values: Values) -> tuple[float, float]:
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    margin = max(0.06 * (high - low), 0.005 * abs(high))
    return low - margin, high + margin
