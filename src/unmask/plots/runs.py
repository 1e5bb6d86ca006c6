"""The log of a run as series that can be drawn and summed up."""

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
