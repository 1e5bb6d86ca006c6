"""What experiments are made of: scales, runs, cells, curves and tables; `workspace` trains and measures them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from unmask.config import Recipe, parse_recipe
from unmask.data.protocols import Protocol, get_protocol
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Estimate, format_estimate
from unmask.likelihood import Bound

if TYPE_CHECKING:
    from unmask.evaluation.tables.workspace import Workspace

T = TypeVar("T")
ScaleName = Literal["tiny", "small", "paper"]
SCALES = get_args(ScaleName)


@dataclass(frozen=True)
class Scale:
    """The size of an experiment.

    protocol: the data, unless the user names others. recipe: what the runs share. seeds: training seeds of each run.
    documents: of the test part to evaluate on, None for all. samples: generated texts, or draws of an estimator, per
    setting. steps: numbers of sampling steps to compare.
    """

    protocol: str
    recipe: Mapping[str, Any]
    seeds: int = 1
    documents: int | None = None
    samples: int = 64
    steps: tuple[int, ...] = ()


TINY: dict[str, Any] = {
    "data": {"length": 64},
    "model": {"size": "nano", "hidden_size": 64, "layers": 2, "heads": 2, "dropout": 0.0},
    "optimizer": {"name": "adamw", "learning_rate": 0.003, "warmup": 10, "ema": 0.9},
    "training": {"steps": 60, "batch_size": 16, "validate_every": 60, "validation_rows": 16, "save_every": 20},
}
"""Seconds on two cores: it shows that a command works, and nothing about the models."""
SMALL: dict[str, Any] = {
    "model": {"size": "tiny", "hidden_size": 384, "layers": 8, "heads": 6, "dropout": 0.0, "qk_norm": True},
    "optimizer": {"name": "muon", "learning_rate": 0.007, "warmup": 100, "cooldown": 0.9, "ema": 0.99},
    "training": {"steps": 3000, "batch_size": 256, "validate_every": 1000, "validation_rows": 512, "save_every": 500},
}
"""Minutes on one GPU."""
PAPER: dict[str, Any] = {
    "model": {"size": "small", "dropout": 0.1},
    "optimizer": {"name": "adamw", "learning_rate": 0.0003, "warmup": 2500, "clip": 1.0, "ema": 0.9999},
    "training": {
        "steps": 1_000_000,
        "batch_size": 512,
        "validate_every": 10_000,
        "validation_rows": 1024,
        "save_every": 10_000,
    },
}
"""The published hyper-parameters: days on many GPUs."""


@dataclass(frozen=True)
class Run:
    """One training run of an experiment: a row of its table (`label`) with one training seed.

    start: the run whose network is trained further; the recipe's model is a checkpoint with the name of its folder.
    """

    label: str
    recipe: Recipe
    seed: int = 0
    start: Run | None = None

    @property
    def title(self) -> str:
        """The row and the training seed."""
        return f"{self.label}, seed {self.seed}"

    @property
    def tokens(self) -> int:
        """Tokens read in training."""
        return self.recipe.training.steps * self.recipe.training.batch_size * self.recipe.data.length

    @property
    def folder(self) -> str:
        """A name that is the same for the same recipe, so that experiments share their runs."""
        digest = blake2b(self.recipe.to_yaml().encode(), digest_size=5).hexdigest()
        return f"{self.recipe.objective.name}-{digest}"


def merge(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; later ones win, and a mapping with another `name` replaces the earlier one."""
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            old = merged.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                other_name = "name" in old and "name" in value and old["name"] != value["name"]
                value = value if other_name else merge(old, value)
            merged[key] = value
    return merged


def without_model(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of a recipe for a model of another kind than theirs."""
    return {name: part for name, part in recipe.items() if name != "model"}


def make_run(label: str, protocol: Protocol, *parts: Mapping[str, Any], seed: int = 0) -> Run:
    """A run on a protocol's data; `parts` are pieces of a recipe, whose model is a DiT unless they name another."""
    data = {
        "source": {"name": "protocol", "protocol": protocol.name},
        "tokenizer": dict(protocol.tokenizer),
        "policy": dict(protocol.policy),
        "length": protocol.length,
    }
    recipe = merge({"data": data}, *parts, {"training": {"seed": seed}})
    recipe["model"] = {"name": "dit", **recipe["model"]}
    return Run(label, parse_recipe(recipe), seed)


def seeded_runs(rows: Mapping[str, Mapping[str, Any]], scale: Scale, protocol: Protocol) -> list[Run]:
    """A run for each row, which says what it changes in the scale's recipe, and each training seed."""
    return [
        make_run(label, protocol, scale.recipe, row, seed=seed)
        for label, row in rows.items()
        for seed in range(scale.seeds)
    ]


BASELINES: dict[str, dict[str, Any]] = {
    "AR": {"model": {"name": "causal"}, "objective": "ar"},
    "D3PM": {"objective": {"name": "d3pm", "steps": 1000}},
    "SEDD": {"objective": "sedd"},
    "MDLM": {"objective": "subs"},
}
"""The rows of Tables 1 and 2: what each model changes in the shared recipe."""


def baseline_runs(labels: Iterable[str], scale: Scale, protocol: Protocol) -> list[Run]:
    """Runs of some baselines. AR takes half of the steps, in which it predicts as many tokens as the others."""
    halved = {"training": {"steps": scale.recipe["training"]["steps"] // 2}}
    rows = {label: merge(BASELINES[label], halved if label == "AR" else {}) for label in labels}
    return seeded_runs(rows, scale, protocol)


def one_seed(*labels: str) -> Callable[[Scale, Protocol], list[Run]]:
    """A function that returns the runs of some baselines with the first training seed."""
    return lambda scale, protocol: baseline_runs(labels, replace(scale, seeds=1), protocol)


def by_label(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each row."""
    labels = dict.fromkeys(run.label for run in runs)
    return {label: [run for run in runs if run.label == label] for label in labels}


@dataclass(frozen=True)
class Cell:
    """A value of a table with its standard errors by name: `mc`, `data`, `seeds`, or with its 95% interval.

    bound: whether it is an upper bound.
    """

    value: float
    errors: Mapping[str, float] = field(default_factory=dict)
    bound: bool = False
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, estimate: Estimate) -> Cell:
        """The value of an estimate, and its interval if that is known."""
        low, high = estimate.low, estimate.high
        return cls(estimate.value, interval=None if low is None or high is None else (low, high))

    @property
    def spread(self) -> float:
        """Half of the interval, or else the largest error."""
        if self.interval is not None:
            return (self.interval[1] - self.interval[0]) / 2
        return max(self.errors.values(), default=0.0)

    def __str__(self) -> str:
        if self.interval is not None:
            return format_estimate(Estimate(self.value, *self.interval))
        scale = max(abs(self.value), self.spread)
        digits = 3 if scale < 10 else 2 if scale < 100 else 1
        if 0 < scale < 0.1:
            digits = 2 - math.floor(math.log10(scale))
        shown = " ± ".join(f"{value:.{digits}f}" for value in (self.value, *self.errors.values()))
        return f"{'≤ ' if self.bound else ''}{shown}"


def seeds_cell(values: Sequence[float]) -> Cell:
    """The mean over seeds, with their standard deviation if there are several."""
    return Cell(statistics.fmean(values), {"seeds": statistics.stdev(values)} if len(values) > 1 else {})


def bound_cell(bounds: Sequence[Bound], unit: str) -> Cell:
    """The mean of a figure over training seeds, with the mean errors of its bounds and the spread over seeds."""
    values = [getattr(bound, unit) for bound in bounds]
    errors: dict[str, float] = {}
    for name in ("mc", "data"):
        each = [error for bound in bounds if (error := bound.error(unit, name)) is not None]
        if each and not (name == "mc" and bounds[0].exact):
            errors[name] = statistics.fmean(each)
    if len(values) > 1:
        errors["seeds"] = statistics.stdev(values)
    return Cell(statistics.fmean(values), errors, bound=not bounds[0].exact)


@dataclass(frozen=True)
class Curve:
    """A line of a figure, with optional error bars. axis, x_axis: its axes, if they are not the figure's own.

    Curves with the same axes share a panel.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    errors: Sequence[float] = ()
    axis: str = ""
    x_axis: str = ""

    @classmethod
    def of(cls, label: str, x: Sequence[float], cells: Sequence[Any], axis: str = "", x_axis: str = "") -> Curve:
        """A curve through cells, with half of their interval or else their largest error as bars."""
        return cls(label, x, [cell.value for cell in cells], [cell.spread for cell in cells], axis, x_axis)


@dataclass(frozen=True)
class Table:
    """The result of an experiment.

    published: figures of the paper by row and column. comparable: whether they are of the same data, so that the figure
    may show them too. curves: what the figure shows; without them it shows the first column, or with `bars` all columns
    as bars, grouped by row. bar_rows: the rows with bars, if not all. log_x: whether the x axis is logarithmic.
    """

    title: str
    columns: Sequence[str]
    rows: Mapping[str, Mapping[str, Cell | str]]
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    comparable: bool = False
    curves: Sequence[Curve] = ()
    axes: tuple[str, str] = ("", "")
    log_x: bool = False
    bars: bool = False
    bar_rows: Sequence[str] | None = None

    def _is_published(self, column: str) -> bool:
        return any(column in row for row in self.published.values())

    def header(self) -> list[str]:
        """The columns; each with published figures is followed by one for them."""
        header = [""]
        for column in self.columns:
            header += [column, "published"] if self._is_published(column) else [column]
        return header

    def lines(self) -> list[list[str]]:
        """The rows as text, in the order of the header."""
        lines = []
        for label, cells in self.rows.items():
            line = [label]
            for column in self.columns:
                line.append(str(cells.get(column, "-")))
                if self._is_published(column):
                    value = self.published.get(label, {}).get(column)
                    line.append("-" if value is None else f"{value:g}")
            lines.append(line)
        return lines

    def markdown(self) -> str:
        header, *lines = self.header(), *self.lines()
        rows = [header, ["---"] * len(header), *lines]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"## {self.title}\n\n{table}\n{notes}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = {
            label: {name: cell if isinstance(cell, str) else asdict(cell) for name, cell in cells.items()}
            for label, cells in self.rows.items()
        }
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": rows,
            "text": [self.header(), *self.lines()],
            "published": {label: dict(row) for label, row in self.published.items()},
            "notes": list(self.notes),
            "curves": [asdict(curve) for curve in self.curves],
        }


class Unfinished(UnmaskError):
    """A run or a measurement is missing, and this process does not make it."""


def finished(calls: Iterable[Callable[[], T]]) -> list[T]:
    """The results of calls, without those that raise `Unfinished`; it is raised if there are no results."""
    results = []
    for call in calls:
        with suppress(Unfinished):
            results.append(call())
    if not results:
        raise Unfinished("Nothing is finished.")
    return results


@dataclass(frozen=True)
class Experiment:
    """A table of the paper, or of a claim in it.

    `measure` leaves out what raises `Unfinished`. Processes side by side call it, each for what no other one makes, so
    a row must not keep the next one from being measured.

    runs: what is trained at a scale, on a protocol. measure: the table of trained runs. translates: whether the data
    are pairs of texts.
    """

    name: str
    about: str
    scales: Mapping[ScaleName, Scale]
    runs: Callable[[Any, Protocol], Sequence[Run]]
    measure: Callable[[Workspace, Any, Protocol, Sequence[Run]], Table]
    translates: bool = False

    def fits(self, protocol: Protocol) -> bool:
        """Return whether a protocol has the kind of data that this experiment needs."""
        return (protocol.policy["name"] == "prompted") == self.translates

    def takes_seeds(self, name: ScaleName) -> bool:
        """Return whether runs can be repeated with several training seeds."""
        scale = self.scale(name)
        return any(run.seed for run in self.runs(replace(scale, seeds=2), get_protocol(scale.protocol)))

    def scale(self, name: ScaleName) -> Scale:
        if name not in self.scales:
            raise UnmaskError(f"'{self.name}' has no scale '{name}'; choose one of: {', '.join(self.scales)}.")
        return self.scales[name]


# ---- tables of likelihoods -------------------------------------------------------------------------------------------


def units(protocol: Protocol) -> dict[str, str]:
    """The columns of a likelihood table and their units: bits per character where characters are the tokens."""
    if protocol.tokenizer["name"] == "dna":
        return {"perplexity": "perplexity", "bits per base": "bits_per_char"}
    if protocol.tokenizer["name"] == "char":
        return {"bits per character": "bits_per_char"}
    return {"perplexity": "perplexity", "bits per byte": "bits_per_byte"}


def with_parameters(table: Table, workspace: Workspace, runs: Sequence[Run]) -> Table:
    """A table of runs with a column for the parameters of their networks."""
    column = "parameters, millions"
    sizes: dict[str, Cell] = {}
    for label, seeds in by_label(runs).items():
        with suppress(Unfinished):
            sizes[label] = workspace.count_parameters(seeds[0])
    rows = {
        label: {**cells, **({column: sizes[label]} if label in sizes else {})} for label, cells in table.rows.items()
    }
    return replace(table, columns=[*table.columns, column], rows=rows)


def bounds_by_label(
    workspace: Workspace, scale: Scale, protocol: Protocol, runs: Sequence[Run]
) -> dict[str, list[Bound]]:
    """The bounds of each row on the test part of a protocol, one for each training seed that is finished."""
    bounds: dict[str, list[Bound]] = {}
    for label, seeds in by_label(runs).items():
        bounds[label] = []
        with suppress(Unfinished):
            bounds[label] = workspace.bounds(seeds, protocol, scale.documents)
    return bounds


def bounds_table(
    workspace: Workspace,
    scale: Scale,
    protocol: Protocol,
    runs: Sequence[Run],
    title: str,
    published: Mapping[str, float] | None = None,
    published_on: str | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """The bound of each row on the test part of the protocol, averaged over training seeds."""
    columns = units(protocol)
    rows: dict[str, dict[str, Cell | str]] = {
        label: {column: bound_cell(bounds, unit) for column, unit in columns.items()} if bounds else {}
        for label, bounds in bounds_by_label(workspace, scale, protocol, runs).items()
    }
    return Table(
        title,
        list(columns),
        rows,
        {label: {"perplexity": value} for label, value in (published or {}).items()},
        [*notes, error_note(scale)],
        comparable=protocol.name == published_on,
    )


def error_note(scale: Scale) -> str:
    """The note that explains the errors of a table of bounds."""
    seeds = f", ± standard deviation over {scale.seeds} training seeds" if scale.seeds > 1 else ""
    return f"± Monte-Carlo error (bounds only), ± data error over documents (unknown for one document){seeds}."
