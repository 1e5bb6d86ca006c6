"""Experiments: the runs that a table needs, a workspace that trains and measures each of them once, and the table.

Everything that a workspace does is kept in its folder: runs in `runs/`, measurements in `measurements/`. A second
call finds what is there and goes on with the rest, whenever the first one was stopped.
"""

from __future__ import annotations

import json
import math
import platform
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from unmask import __version__
from unmask.config import Recipe, parse_recipe, with_overrides
from unmask.data.protocols import Protocol, get_protocol
from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Estimate, format_estimate
from unmask.io import atomic_text
from unmask.likelihood import OFFSETS, Bound, estimate_bound

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM
    from unmask.training import Callback

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


@dataclass(frozen=True)
class Cell:
    """A value of a table with its standard errors by name: `mc`, `data`, `seeds`, or with its 95% interval.

    bound: it is an upper bound.
    """

    value: float
    errors: Mapping[str, float] = field(default_factory=dict)
    bound: bool = False
    interval: tuple[float, float] | None = None

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

    published: figures of the paper by row and column, where they exist. comparable: whether they are of the same data
    and may stand in the same figure. curves: what the figure shows; without them it shows the first column, or with
    `bars` all columns as bars, grouped by row. bar_rows: the rows with bars, if not all. log_x: whether its x axis is
    logarithmic.
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

    def header(self) -> list[str]:
        """The columns; each with published figures is followed by one for them."""
        found = {column for row in self.published.values() for column in row}
        return ["", *(name for one in self.columns for name in ([one, "published"] if one in found else [one]))]

    def lines(self) -> list[list[str]]:
        """The rows as text, in the order of the header."""
        found = {column for row in self.published.values() for column in row}
        lines = []
        for label, cells in self.rows.items():
            line = [label]
            for column in self.columns:
                line.append(str(cells.get(column, "-")))
                if column in found:
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


@dataclass(frozen=True)
class Experiment:
    """A table of the paper, or of a claim in it.

    runs: what it trains, for a scale and a protocol. measure: the table, of trained runs. protocols: scales that it
    supports with their sizes. translates: whether its data are pairs of texts.
    """

    name: str
    about: str
    scales: Mapping[ScaleName, Scale]
    runs: Callable[[Any, Protocol], Sequence[Run]]
    measure: Callable[[Workspace, Any, Protocol, Sequence[Run]], Table]
    translates: bool = False

    def fits(self, protocol: Protocol) -> bool:
        """Return whether the data of a protocol are of the kind that it needs."""
        return (protocol.policy["name"] == "prompted") == self.translates

    def scale(self, name: ScaleName) -> Scale:
        if name not in self.scales:
            raise UnmaskError(f"'{self.name}' has no scale '{name}'; choose one of: {', '.join(self.scales)}.")
        return self.scales[name]


class Workspace:
    """A folder in which runs are trained and measured once.

    on_run: called with the label before a run is trained, and returns the callbacks of its training. on_measure: called
    with the name of a measurement before it is made, and returns a function that is told how many draws are done.
    """

    def __init__(
        self,
        folder: Path,
        on_run: Callable[[str], Sequence[Callback]] = lambda label: (),
        on_measure: Callable[[str], Callable[[float], None] | None] = lambda name: None,
        device: str | None = None,
    ) -> None:
        self.folder = folder
        self.device = device
        self._on_run, self._on_measure = on_run, on_measure
        self.seconds: dict[str, float] = {}

    def train(self, run: Run) -> Path:
        """Train a run, or finish one that was stopped, and return its folder."""
        from unmask.training import train
        from unmask.training.checkpointing import find_latest, read_trainer_state

        path = self.folder / "runs" / run.folder
        latest = find_latest(path)
        if latest is None or read_trainer_state(latest).step < run.recipe.training.steps:
            recipe = run.recipe
            if run.start is not None:
                model = recipe.model.model_copy(update={"path": str(self.train(run.start))})
                recipe = recipe.model_copy(update={"model": model})
            train(recipe, path, resume="auto", callbacks=self._on_run(f"{run.label}, seed {run.seed}"))
        latest = find_latest(path)
        assert latest is not None
        self.seconds[run.folder] = read_trainer_state(latest).seconds
        return path

    def load(self, run: Run) -> MaskedDiffusionLM:
        from unmask.pipeline import load

        return load(self.train(run), device=self.device)

    def count_parameters(self, run: Run) -> Cell:
        """Millions of parameters of a run's network."""

        def count(_: Any) -> dict[str, Any]:
            return {"millions": sum(one.numel() for one in self.load(run).denoiser.parameters()) / 1e6}

        return Cell(self.measure("parameters", count, run=run.folder)["millions"])

    def measure(
        self, name: str, compute: Callable[[Callable[[float], None] | None], dict[str, Any]], **inputs: Any
    ) -> dict[str, Any]:
        """The result of `compute(progress)`, a JSON object, kept under `name` and its inputs."""
        path = self._measurement(name, inputs)
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
        else:
            start = time.perf_counter()
            result = compute(self._on_measure(name))
            kept = {"inputs": inputs, "seconds": time.perf_counter() - start, "result": result}
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_text(path, json.dumps(kept, indent=1) + "\n")
        self.seconds[path.stem] = kept["seconds"]
        return kept["result"]

    def has_measured(self, name: str, **inputs: Any) -> bool:
        """Return whether a result is kept."""
        return self._measurement(name, inputs).is_file()

    def _measurement(self, name: str, inputs: dict[str, Any]) -> Path:
        digest = blake2b(json.dumps(inputs, sort_keys=True).encode(), digest_size=5).hexdigest()
        return self.folder / "measurements" / f"{name}-{digest}.json"

    def bound(
        self, run: Run, protocol: Protocol, documents: int | None, seed: int = 0, steps: int | None = None
    ) -> Bound:
        """The bound of a run on the test part of a protocol, or that of its process in so many steps."""
        from unmask.evaluation.zero_shot import ProtocolPart, protocol_rows
        from unmask.objectives.subs import Subs

        def compute(progress: Callable[[float], None] | None) -> dict[str, Any]:
            lm = self.load(run)
            rows, _ = protocol_rows(lm, ProtocolPart(protocol), documents)
            if steps is None:
                return lm.evaluate(rows, seed=seed, progress=progress).headline.as_dict()
            denoiser, estimator = lm.prepare_denoiser(rows.length * len(rows) * OFFSETS), Subs(steps=steps)
            return estimate_bound(denoiser, estimator, lm.config.schedule, rows, seed=seed, progress=progress).as_dict()

        self.train(run)
        inputs = {"run": run.folder, "protocol": protocol.name, "documents": documents, "seed": seed}
        inputs |= {} if steps is None else {"steps": steps}
        return Bound.from_dict(self.measure(f"bound-{run.folder}", compute, **inputs))


def run_experiment(
    experiment: Experiment,
    scale_name: ScaleName,
    on: str | None,
    workspace: Workspace,
    settings: Sequence[str] = (),
    seeds: int | None = None,
) -> Table:
    """Train what is missing, measure, and write the table as JSON, Markdown and a picture.

    settings: KEY=VALUE for the recipe that the runs share. seeds: training seeds of each run, instead of the scale's.
    """
    scale = experiment.scale(scale_name)
    scale = replace(scale, recipe=with_overrides(scale.recipe, settings), seeds=seeds or scale.seeds)
    protocol = get_protocol(on or scale.protocol)
    if not experiment.fits(protocol):
        kind = "pairs of texts, such as multi30k" if experiment.translates else "plain text"
        raise UnmaskError(f"'{experiment.name}' needs {kind}, got the protocol '{protocol.name}'; choose another.")
    workspace.seconds.clear()
    table = experiment.measure(workspace, scale, protocol, experiment.runs(scale, protocol))
    options = ["--scale", scale_name, *(["--on", on] if on else []), *(["--seeds", str(seeds)] if seeds else [])]
    command = shlex.join(["unmask", "reproduce", experiment.name, *options, *settings])
    report = {
        "experiment": experiment.name,
        "command": command,
        "scale": scale_name,
        "protocol": protocol.name,
        "stand_in": protocol.stand_in,
        "seconds_by_part": dict(workspace.seconds),
    }
    write_table(workspace.folder / experiment.name, table, report, f"`{command}`, protocol `{protocol.name}`")
    return table


def write_table(folder: Path, table: Table, report: Mapping[str, Any], heading: str) -> dict[str, Any]:
    """Write table.json (the report, versions and the table), table.md and figure.png, and return the JSON object."""
    from unmask.plots.tables import draw_table

    full = {**report, "versions": versions(), **table.as_dict()}
    folder.mkdir(parents=True, exist_ok=True)
    draw_table(table, folder / "figure.png")
    atomic_text(folder / "table.md", f"{table.markdown()}\n{heading}\n")
    atomic_text(folder / "table.json", json.dumps(full, indent=1, ensure_ascii=False) + "\n")
    return full


def versions() -> dict[str, str]:
    """The versions and the device behind a result."""
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "unmask": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": device,
    }


# ---- how long an experiment takes -----------------------------------------------------------------------------------

VOCABULARIES = {"dna": 6, "char": 28, "byte": 258, "bert-base-uncased": 30_522, "gpt2": 50_258}
"""Tokens of the protocols' tokenizers, the mask included."""
SPEED_SECONDS = 2.0


def measure_speed() -> float:
    """Floating-point operations per second of training steps on this machine, measured for two seconds."""
    import torch

    from unmask.models.inference import select_device
    from unmask.objectives.base import Noise
    from unmask.process import Batch
    from unmask.training.metrics import flops_per_token

    device = select_device(None)
    on_gpu = device.type == "cuda"
    recipe = parse_recipe({"model": {"name": "dit", "size": "small" if on_gpu else "nano", "dropout": 0.0}})
    rows, length, vocabulary = (64 if on_gpu else 8), recipe.data.length, 1024
    network = recipe.model.build(vocabulary, vocabulary - 1, length).to(device)
    batch = Batch.of(torch.randint(vocabulary - 1, (rows, length), device=device))
    noise = Noise.draw(0, 0, torch.arange(rows, device=device), torch.rand(rows, device=device), length)
    times: list[float] = []
    while sum(times) < SPEED_SECONDS or len(times) < 3:
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            terms = recipe.objective.loss(network, batch, recipe.schedule, noise)
        terms.loss.sum().backward()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    flops = flops_per_token(network.config, length, recipe.objective, recipe.schedule)
    assert flops is not None
    return flops * rows * length / statistics.median(times)


def training_flops(recipe: Recipe, model: Any = None) -> float:
    """Floating-point operations of a training run; NaN for an unknown architecture. model: replaces the recipe's."""
    import torch

    from unmask.training.metrics import flops_per_token

    data = recipe.data
    tokenizer = data.tokenizer.model_dump()
    vocabulary = tokenizer.get("vocab_size") or VOCABULARIES.get(tokenizer.get("path", tokenizer["name"]), 50_258)
    with torch.device("meta"):
        config = (model or recipe.model).build(vocabulary, vocabulary - 1, data.length).config
    flops = flops_per_token(config, data.length, recipe.objective, recipe.schedule) or math.nan
    return flops * recipe.training.steps * recipe.training.batch_size * data.length
