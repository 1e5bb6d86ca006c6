"""A run shown in TensorBoard, Weights & Biases or trackio, through Accelerate's trackers: what the log holds, no more.

OUT/trackers/ holds what they keep on this machine (TensorBoard's events, W&B's folder) and the run's id, by which a
resumed run goes on where it was.
"""

from __future__ import annotations

import sys
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from accelerate import tracking

from unmask.errors import UnmaskError
from unmask.files import atomic_text
from unmask.training.progress import Progress

FOLDER = "trackers"
PROJECT = "unmask"
UNITS = ("bits_per_", "perplexity")


@dataclass(frozen=True)
class Run:
    """What a tracker is told of a run when it begins: its folder, its resolved recipe, and the steps behind it."""

    out: Path
    recipe: dict[str, Any]
    step: int

    @property
    def folder(self) -> Path:
        """What trackers keep beside the run."""
        return self.out / FOLDER

    @property
    def id(self) -> str:
        """The same for a run and its resumptions, another for a new run in a folder of the same name."""
        path = self.folder / "run-id"
        if not path.is_file():
            atomic_text(path, uuid.uuid4().hex)
        return path.read_text(encoding="utf-8")


def check_trackers(names: Iterable[str]) -> None:
    """Refuse a tracker whose package is missing, before anything else is done."""
    for name in names:
        if find_spec(name) is None:
            raise UnmaskError(
                f"training.trackers names '{name}', which is not installed: pip install 'unmask[track]', "
                "or leave it out."
            )


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a training or validation line, under the names that trackers group them by."""
    if "validation" in record:
        units = {key: value for key, value in record["validation"].items() if key.startswith(UNITS)}
        return {**_grouped("validation", units), **_grouped("foresight", record.get("foresight", {}))}
    buckets = record["cross_entropy"]
    by_rate = {f"{i / len(buckets):.1f}-{(i + 1) / len(buckets):.1f}": value for i, value in enumerate(buckets)}
    rest = {key: value for key, value in record.items() if key not in ("step", "cross_entropy")}
    return {**_grouped("train", rest), **_grouped("cross_entropy", by_rate)}


class Trackers(Progress):
    """Passes every record on. A tracker that fails on the way is left behind; the run goes on without it."""

    def __init__(self, names: Sequence[str], out: Path, recipe: dict[str, Any]) -> None:
        self._names = names
        self._out = out
        self._recipe = recipe
        self._trackers: dict[str, Any] = {}

    def begin(self, step: int, steps: int) -> None:
        run = Run(self._out.absolute(), self._recipe, step)
        for name in self._names:
            self._trackers[name] = _start(name, run)

    def trained(self, record: dict[str, Any]) -> None:
        self._each(lambda name, tracker: tracker.log(scalars(record), step=record["step"]))

    def validated(self, record: dict[str, Any]) -> None:
        self._each(lambda name, tracker: tracker.log(scalars(record), step=record["step"]))

    def sampled(self, record: dict[str, Any]) -> None:
        self._each(lambda name, tracker: KINDS[name].show(tracker, "samples", record["samples"], record["step"]))

    def advised(self, record: dict[str, Any]) -> None:
        self._each(lambda name, tracker: KINDS[name].show(tracker, "advice", [record["advice"]], record["step"]))

    def close(self) -> None:
        self._each(lambda name, tracker: tracker.finish())
        self._trackers.clear()

    def _each(self, tell: Callable[[str, Any], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                with redirect_stdout(sys.stderr):
                    tell(name, tracker)
            except Exception as error:
                del self._trackers[name]
                warnings.warn(f"The tracker '{name}' failed and is left out from here on: {error}", stacklevel=2)


@dataclass(frozen=True)
class Kind:
    """How a run is opened in one tracker, and how texts are shown there."""

    open: Callable[[Run], Any]
    show: Callable[[Any, str, list[str], int], None]


def _start(name: str, run: Run) -> Any:
    """An open tracker. What it prints goes to standard error, since standard output may be somebody's JSON."""
    try:
        with redirect_stdout(sys.stderr):
            return KINDS[name].open(run)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UnmaskError(
            f"The tracker '{name}' could not be started ({reason}); set it up, or leave it out of training.trackers."
        ) from error


def _open_tensorboard(run: Run) -> Any:
    # What a killed run had told beyond its last checkpoint is hidden: it will be told again.
    purge = {"purge_step": run.step + 1} if run.step else {}
    tracker = tracking.TensorBoardTracker(FOLDER, logging_dir=run.out, **purge)
    tracker.start()
    _show_in_tensorboard(tracker, "recipe", [yaml.safe_dump(run.recipe, sort_keys=False)], run.step)
    return tracker


def _open_wandb(run: Run) -> Any:
    run.folder.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"id": run.id, "resume": "allow", "dir": str(run.folder)}
    tracker = tracking.WandBTracker(PROJECT, name=run.out.name, config=run.recipe, **options)
    tracker.start()
    return tracker


def _open_trackio(run: Run) -> Any:
    resume = "allow" if run.step else "never"
    tracker = tracking.TrackioTracker(PROJECT, name=run.out.name, config=run.recipe, resume=resume, embed=False)
    tracker.start()
    return tracker


def _show_in_tensorboard(tracker: Any, name: str, texts: list[str], step: int) -> None:
    tracker.log({name: _verbatim(texts)}, step=step)


def _show_in_wandb(tracker: Any, name: str, texts: list[str], step: int) -> None:
    tracker.log_table(name, columns=["text"], data=[[text] for text in texts], step=step)


def _show_in_trackio(tracker: Any, name: str, texts: list[str], step: int) -> None:
    import trackio

    tracker.log({name: trackio.Markdown(_verbatim(texts))}, step=step)


KINDS = {
    "tensorboard": Kind(_open_tensorboard, _show_in_tensorboard),
    "wandb": Kind(_open_wandb, _show_in_wandb),
    "trackio": Kind(_open_trackio, _show_in_trackio),
}


def _verbatim(texts: list[str]) -> str:
    """Markdown that shows texts as they are, one block each."""
    blocks = ["\n".join(f"    {line}" for line in text.split("\n")) for text in texts]
    return "\n\n---\n\n".join(blocks)


def _grouped(group: str, values: dict[str, Any]) -> dict[str, float]:
    return {f"{group}/{key}": value for key, value in values.items() if value is not None}
