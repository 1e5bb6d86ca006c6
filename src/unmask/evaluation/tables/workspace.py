"""A workspace: a folder in which the runs of experiments are trained and measured once, and their tables written.

Runs are in `runs/`, measurements in `measurements/`. A second call finds what is there and goes on with the rest,
whenever the first one was stopped.
"""

from __future__ import annotations

import base64
import json
import math
import platform
import shlex
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from unmask import __version__
from unmask.config import Recipe, parse_recipe, with_overrides
from unmask.data.protocols import Protocol, get_protocol
from unmask.errors import UnmaskError
from unmask.evaluation.tables.base import Cell, Experiment, Run, ScaleName, Table, Unfinished, finished
from unmask.io import atomic_text
from unmask.likelihood import OFFSETS, Bound, estimate_bound

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM
    from unmask.training import Callback


Missing = Literal["make", "share", "skip"]

NAMED = 8
"""Missing runs that a note names."""


class Workspace:
    """A folder in which runs are trained and measured once.

    on_run: called with the label before a run is trained, and returns the callbacks of its training. jobs: processes
    that train and measure side by side. on_trained: called with a label, the number of runs that these processes have
    trained, and that of all they train. missing: whether to make what is missing, to share this work with other
    processes, or to skip it; `Unfinished` is raised in place of what others make, and of what is skipped.
    """

    def __init__(
        self,
        folder: Path,
        on_run: Callable[[str], Sequence[Callback]] = lambda label: (),
        device: str | None = None,
        jobs: int = 1,
        on_trained: Callable[[str, int, int], None] = lambda label, done, total: None,
        missing: Missing = "make",
    ) -> None:
        self.folder = folder
        self.device = device
        self.jobs = jobs
        self.on_trained = on_trained
        self._on_run = on_run
        self._missing = missing
        self.seconds: dict[str, float] = {}
        self.devices: set[str] = set()
        """The devices on which the figures of a table were measured."""
        self.unfinished: dict[str, bool] = {}
        """What `Unfinished` was raised for, in order, and whether it is a run that is not trained."""

    def train(self, run: Run) -> Path:
        """Train a run, or finish one that was stopped, and return its folder."""
        path, seconds = self._run_folder(run), self.training_seconds(run)
        if seconds is None:
            recipe = run.recipe
            if run.start is not None:
                model = recipe.model.model_copy(update={"path": str(self.train(run.start))})
                recipe = recipe.model_copy(update={"model": model})
            with self._making(path.name, run.title, trains=True):
                seconds = self.training_seconds(run)  # another process may have finished it just now
                if seconds is None:
                    from unmask.training import train

                    seconds = train(recipe, path, resume="auto", callbacks=self._on_run(run.title)).seconds
        self.seconds[run.folder] = seconds
        return path

    def training_seconds(self, run: Run) -> float | None:
        """How long a run took, None if it is not finished."""
        from unmask.training.checkpointing import find_latest, read_trainer_state

        latest = find_latest(self._run_folder(run))
        state = None if latest is None else read_trainer_state(latest)
        return None if state is None or state.step < run.recipe.training.steps else state.seconds

    def _run_folder(self, run: Run) -> Path:
        return self.folder / "runs" / run.folder

    def load(self, run: Run) -> MaskedDiffusionLM:
        from unmask.pipeline import load

        return load(self.train(run), device=self.device)

    def count_parameters(self, run: Run) -> Cell:
        """Millions of parameters of a run's network."""

        def count() -> dict[str, Any]:
            return {"millions": sum(one.numel() for one in self.load(run).denoiser.parameters()) / 1e6}

        return Cell(self.measure("parameters", count, of=[run], run=run.folder)["millions"])

    def measure(
        self,
        name: str,
        compute: Callable[[], dict[str, Any]],
        of: Sequence[Run] = (),
        alone: bool = False,
        **inputs: Any,
    ) -> dict[str, Any]:
        """The result of `compute`, a JSON object, kept under `name` and its inputs.

        of: the runs that are measured; they are trained if there is no result. alone: whether `compute` measures
        seconds, which other processes would change.
        """
        path = self._measurement(name, inputs)
        if not path.is_file():
            for run in of:
                self.train(run)
            if alone and self._missing == "share":
                raise Unfinished(f"{name} is measured alone.")
            with self._making(path.stem, of[0].title if of else name, trains=False):
                if not path.is_file():
                    start = time.perf_counter()
                    result = compute()
                    spent = time.perf_counter() - start
                    kept = {"inputs": inputs, "seconds": spent, "device": device_name(), "result": result}
                    path.parent.mkdir(parents=True, exist_ok=True)
                    atomic_text(path, json.dumps(kept, indent=1) + "\n")
        for run in of:
            if (seconds := self.training_seconds(run)) is not None:
                self.seconds[run.folder] = seconds
        kept = json.loads(path.read_text(encoding="utf-8"))
        self.seconds[path.stem] = kept["seconds"]
        if "device" in kept:
            self.devices.add(kept["device"])
        return kept["result"]

    @contextmanager
    def _making(self, name: str, title: str, trains: bool) -> Iterator[None]:
        """Make what is missing, or raise `Unfinished`. Of several processes that share the work one makes it."""
        if self._missing == "make":
            yield
            return
        lock = FileLock(self.folder / "locks" / name)
        try:
            if self._missing == "skip":
                raise Timeout(lock.lock_file)
            Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            self.unfinished[title] = trains or self.unfinished.get(title, False)
            raise Unfinished(f"{title} is not finished.") from None
        try:
            yield
        finally:
            lock.release()

    def has_measured(self, name: str, **inputs: Any) -> bool:
        """Return whether a result is kept."""
        return self._measurement(name, inputs).is_file()

    def _measurement(self, name: str, inputs: dict[str, Any]) -> Path:
        digest = blake2b(json.dumps(inputs, sort_keys=True).encode(), digest_size=5).hexdigest()
        return self.folder / "measurements" / f"{name}-{digest}.json"

    def bound(
        self, run: Run, protocol: Protocol, documents: int | None, seed: int = 0, steps: int | None = None
    ) -> Bound:
        """The bound of a run on the test part of a protocol; with `steps`, that of the process with this many steps.

        The estimators are compared for the first seed.
        """
        from unmask.evaluation.zero_shot import evaluation_part, protocol_rows
        from unmask.objectives.subs import Subs

        part = evaluation_part(protocol)

        def compute() -> dict[str, Any]:
            lm = self.load(run)
            rows, _ = protocol_rows(lm, part, documents)
            if steps is None and seed == 0:
                return lm.evaluate(rows).headline.as_dict()
            estimators = lm.config.objective.estimators() if steps is None else {None: Subs(steps=steps)}
            name, estimator = next(iter(estimators.items()))
            denoiser = lm.prepare_denoiser(rows.length * len(rows) * OFFSETS)
            return estimate_bound(denoiser, estimator, lm.config.schedule, rows, name=name, seed=seed).as_dict()

        inputs: dict[str, Any] = {"run": run.folder, "protocol": part.name, "documents": documents, "seed": seed}
        inputs |= {} if steps is None else {"steps": steps}
        return Bound.from_dict(self.measure(f"bound-{run.folder}", compute, of=[run], **inputs))

    def bounds(self, runs: Iterable[Run], protocol: Protocol, documents: int | None) -> list[Bound]:
        """The bounds of runs, without those that are not finished; `Unfinished` is raised if there are none."""
        return finished(partial(self.bound, run, protocol, documents) for run in runs)


# ---- experiments ----------------------------------------------------------------------------------------------------


def run_experiment(
    experiment: Experiment,
    scale_name: ScaleName,
    on: str | None,
    workspace: Workspace,
    settings: Sequence[str] = (),
    seeds: int | None = None,
) -> Table:
    """Train what is missing, measure, and write the table as JSON, Markdown and a picture.

    settings: KEY=VALUE for the recipe that the runs share. seeds: training seeds of each run, instead of the scale's;
    refused by an experiment on one network.
    """
    from unmask.evaluation.zero_shot import evaluation_part

    scale = experiment.scale(scale_name)
    scale = replace(scale, recipe=with_overrides(scale.recipe, settings), seeds=seeds or scale.seeds)
    protocol = get_protocol(on or scale.protocol)
    if not experiment.fits(protocol):
        kind = "pairs of texts, such as multi30k" if experiment.translates else "plain text"
        raise UnmaskError(f"'{experiment.name}' needs {kind}, got the protocol '{protocol.name}'; choose another.")
    runs, part = experiment.runs(scale, protocol), evaluation_part(protocol)
    trained_seeds = sorted({run.seed for run in runs})
    if seeds is not None and len(trained_seeds) != seeds:
        raise UnmaskError(f"'{experiment.name}' trains each network with one seed, got --seeds {seeds}; leave it out.")
    if workspace.jobs > 1:
        from unmask.evaluation.tables.side_by_side import make_side_by_side

        make_side_by_side(workspace, experiment, scale, on or scale.protocol, runs)
    workspace.seconds.clear()
    workspace.devices.clear()
    workspace.unfinished.clear()
    nothing = Unfinished(f"Nothing of '{experiment.name}' is finished in '{workspace.folder}'; run it first.")
    try:
        table = experiment.measure(workspace, scale, protocol, runs)
    except Unfinished:
        raise nothing from None
    missing = list(workspace.unfinished)
    if missing and not any(isinstance(cell, Cell) for row in table.rows.values() for cell in row.values()):
        raise nothing
    notes = [f"Not finished: {_shorten(missing)}. Figures are of the runs and seeds that are."] if missing else []
    notes += [f"{protocol.name} stands in for {protocol.stand_in}."] if protocol.stand_in else []
    if part.part != "test":
        notes.append(f"The test part of {protocol.name} is kept back: figures on it are of its {part.part} part.")
    table = replace(table, notes=[*table.notes, *notes])
    options = ["--scale", scale_name, *(["--on", on] if on else []), *(["--seeds", str(seeds)] if seeds else [])]
    command = shlex.join(["unmask", "reproduce", experiment.name, *options, *settings])
    report = {
        "experiment": experiment.name,
        "command": command,
        "scale": scale_name,
        "protocol": protocol.name,
        "part": part.part,
        "stand_in": protocol.stand_in,
        "training_seeds": trained_seeds,
        "unfinished": missing,
        "seconds_by_part": dict(workspace.seconds),
        "versions": versions(", ".join(sorted(workspace.devices)) or device_name()),
    }
    write_table(workspace.folder / experiment.name, table, report, f"`{command}`, protocol `{protocol.name}`")
    return table


def _shorten(names: Sequence[str]) -> str:
    more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
    return "; ".join([*names[:NAMED], *more])


def write_table(folder: Path, table: Table, report: Mapping[str, Any], heading: str) -> dict[str, Any]:
    """Write table.json (the report, versions and the table), table.md and figure.png, and return the JSON object."""
    from unmask.plots.tables import draw_table

    full = {"versions": versions(device_name()), **report, **table.as_dict()}
    folder.mkdir(parents=True, exist_ok=True)
    draw_table(table, folder / "figure.png")
    atomic_text(folder / "table.md", f"{table.markdown()}\n{heading}\n")
    atomic_text(folder / "table.json", json.dumps(full, indent=1, ensure_ascii=False) + "\n")
    return full


def device_name() -> str:
    """The device of this machine."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()


def versions(device: str) -> dict[str, str]:
    """The versions and the device behind a result."""
    import torch
    import transformers

    return {
        "unmask": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "device": device,
    }


# ---- one page with every table ---------------------------------------------------------------------------------------

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: 0.25rem 0.8rem; border-bottom: 1px solid #e6e9ed; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } code { background: #f3f5f7; padding: 0.1rem 0.3rem; } .note { color: #727b85; }
@media (prefers-color-scheme: dark) {
  body { background: #15181c; color: #e6e9ed; } code { background: #252a31; } th, td { border-color: #333a42; }
}
"""


def write_report(folder: Path, names: Sequence[str]) -> Path:
    """Write report.html from the tables in a workspace's folder."""
    sections = [_section(folder / name) for name in names]
    title = "unmask: reproduced tables"
    contents = " ".join(f'<a href="#{name}">{name}</a>' for name in names)
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n<h1>{title}</h1>\n'
        f'<nav>{contents}</nav>\n<p class="note">Bars in figures: 95% intervals, or else the largest error.</p>\n'
        f"{''.join(sections)}</html>\n"
    )
    path = folder / "report.html"
    atomic_text(path, page)
    return path


def _section(folder: Path) -> str:
    report: dict[str, Any] = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    header, *lines = report["text"]
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>\n" for line in lines)
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in report["notes"])
    picture = base64.b64encode((folder / "figure.png").read_bytes()).decode()
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return (
        f'<h2 id="{folder.name}">{folder.name}: {escape(report["title"])}</h2>\n'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>\n"
        f'{notes}<img alt="{escape(report["title"])}" src="data:image/png;base64,{picture}">\n'
        f'<p><code>{escape(report["command"])}</code></p>\n<p class="note">Data: {escape(report["protocol"])}. '
        f"Training seeds: {', '.join(map(str, report['training_seeds']))}. Training and measurements took "
        f"{sum(report['seconds_by_part'].values()):.0f} s. {escape(versions)}.</p>\n"
    )


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


def plan(
    experiments: Sequence[Experiment], scale_name: ScaleName, on: str | None, workspace: Workspace
) -> dict[str, Any]:
    """The runs of experiments, and their hours at the speed of those that are trained, or else of this machine."""
    runs: dict[str, Run] = {}
    rows: list[tuple[dict[str, Any], list[str]]] = []
    for experiment in experiments:
        protocol = get_protocol(on or experiment.scale(scale_name).protocol)
        own = {run.folder: run for run in experiment.runs(experiment.scale(scale_name), protocol)}
        about = {"name": experiment.name, "about": experiment.about, "protocol": protocol.name}
        rows.append((about, list(own)))
        runs |= own
    flops = {key: training_flops(run.recipe, run.start and run.start.recipe.model) for key, run in runs.items()}
    seconds = {key: spent for key, run in runs.items() if (spent := workspace.training_seconds(run)) is not None}
    timed = [key for key in seconds if not math.isnan(flops[key])]
    speed = sum(flops[key] for key in timed) / sum(seconds[key] for key in timed) if timed else measure_speed()

    def count(keys: Collection[str]) -> dict[str, Any]:
        hours = sum(flops[key] for key in keys) / speed / 3600
        trained = sum(key in seconds for key in keys)
        return {"runs": len(keys), "trained": trained, "hours": None if math.isnan(hours) else hours}

    return {
        "scale": scale_name,
        "flops_per_second": speed,
        "timed_runs": len(timed),
        "experiments": [about | count(keys) for about, keys in rows],
        "all": count(runs),
        "left": count([key for key in runs if key not in seconds and not math.isnan(flops[key])]),
    }


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
