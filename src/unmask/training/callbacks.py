"""A run shown in TensorBoard, Weights & Biases or trackio, through Accelerate's trackers: what the log holds, no more.

OUT/trackers/ holds what they keep on this machine (TensorBoard's events, W&B's folder) and the run's id, by which a
resumed run goes on where it was.
"""

from __future__ import annotations

import sys
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from accelerate import tracking
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from unmask.errors import UnmaskError
from unmask.io import atomic_text
from unmask.training.advice import Advisor
from unmask.training.log import Log, read_log

SHOWN_CHARACTERS = 100
"""Of a sample, beside a progress bar."""


class Progress:
    """Who watches a run. This one sees nothing; the others override what they show."""

    def reading(self, part: str, done: int, total: int) -> None:
        """So many characters of a part of the data ('train' or 'validation') are encoded; total 0: are read."""

    def begin(self, step: int, steps: int) -> None:
        """`step` of `steps` steps are done, and the rest begins."""

    def stepped(self) -> None:
        """One more step was started."""

    def trained(self, record: dict[str, Any]) -> None:
        """A training line was logged."""

    def validated(self, record: dict[str, Any]) -> None:
        """A validation line was logged."""

    def sampled(self, record: dict[str, Any]) -> None:
        """Texts were written with the averaged weights."""

    def advised(self, record: dict[str, Any]) -> None:
        """Something about the run is worth a sentence."""

    def close(self) -> None:
        """Nothing more will come."""


class Watchers(Progress):
    """Several who watch: each is told everything, in turn."""

    def __init__(self, *watchers: Progress) -> None:
        self._watchers = watchers

    def reading(self, part: str, done: int, total: int) -> None:
        for watcher in self._watchers:
            watcher.reading(part, done, total)

    def begin(self, step: int, steps: int) -> None:
        for watcher in self._watchers:
            watcher.begin(step, steps)

    def stepped(self) -> None:
        for watcher in self._watchers:
            watcher.stepped()

    def trained(self, record: dict[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.trained(record)

    def validated(self, record: dict[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.validated(record)

    def sampled(self, record: dict[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.sampled(record)

    def advised(self, record: dict[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.advised(record)

    def close(self) -> None:
        with ExitStack() as every:
            for watcher in reversed(self._watchers):
                every.callback(watcher.close)


class Bar(Progress):
    """A progress bar for a terminal."""

    def __init__(self, console: Console) -> None:
        self._bar = RichProgress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[loss]}{task.fields[validation]}{task.fields[speed]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
        )
        self._status = console.status("")
        self._task = self._bar.add_task("", loss="", validation="", speed="", visible=False)

    def reading(self, part: str, done: int, total: int) -> None:
        of = f"encoding the {part} text: {_short(done)} of {_short(total)}" if total else f"reading: {_short(done)}"
        self._status.update(f"{of} characters")
        self._status.start()

    def begin(self, step: int, steps: int) -> None:
        self._status.stop()
        self._bar.reset(self._task, total=steps, completed=step, visible=True)
        self._bar.start()

    def stepped(self) -> None:
        self._bar.advance(self._task)

    def trained(self, record: dict[str, Any]) -> None:
        speed = f"{_short(record['tokens_per_second'])} tokens/s"
        self._bar.update(self._task, loss=f"{record['bits_per_token']:.3f} bits/token  ", speed=speed)

    def validated(self, record: dict[str, Any]) -> None:
        self._bar.update(self._task, validation=f"validation {_bits(record)}{_foresight(record)}  ")

    def sampled(self, record: dict[str, Any]) -> None:
        self._say(f"[dim]{escape(_sample_line(record))}[/dim]")

    def advised(self, record: dict[str, Any]) -> None:
        self._say(f"[yellow]{escape(_advice_line(record))}[/yellow]")

    def close(self) -> None:
        self._status.stop()
        self._bar.stop()

    def _say(self, line: str) -> None:
        """A line that stays, above the bar."""
        self._bar.console.print(line, highlight=False, soft_wrap=True)


class Lines(Progress):
    """A plain line for every logged one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._steps = 0

    def begin(self, step: int, steps: int) -> None:
        self._steps = steps

    def trained(self, record: dict[str, Any]) -> None:
        speed = _short(record["tokens_per_second"])
        self._say(f"step {record['step']}/{self._steps}: {record['bits_per_token']:.3f} bits/token, {speed} tokens/s")

    def validated(self, record: dict[str, Any]) -> None:
        self._say(f"step {record['step']}/{self._steps}: validation {_bits(record)} bits/token{_foresight(record)}")

    def sampled(self, record: dict[str, Any]) -> None:
        self._say(_sample_line(record))

    def advised(self, record: dict[str, Any]) -> None:
        self._say(_advice_line(record))

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)


def progress_for(console: Console, verbose: bool = False) -> Progress:
    """A bar on a terminal; elsewhere nothing, or plain lines when they are asked for."""
    if console.is_terminal:
        return Bar(console)
    return Lines(console) if verbose else Progress()


def _bits(record: dict[str, Any]) -> str:
    validation = record["validation"]
    return f"{validation['bits_per_token']:.3f} ± {validation['bits_per_token_mc_stderr']:.3f}"


def _foresight(record: dict[str, Any]) -> str:
    """How much better a planner foresees what is right than confidence does, where one is trained."""
    seen = record.get("foresight")
    if seen is None or seen["gain_stderr"] is None:
        return ""
    return f", AUC {seen['planner']:.4f} ({seen['gain']:+.4f} ± {seen['gain_stderr']:.4f})"


def _advice_line(record: dict[str, Any]) -> str:
    return f"step {record['step']}: {record['advice']}"


def _sample_line(record: dict[str, Any]) -> str:
    """The beginning of the first text, as one line."""
    text = " ".join(record["samples"][0].split())
    shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
    return f"step {record['step']}: writes “{shown}”"


def _short(number: float) -> str:
    """1234567 as 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


class RunLogger:
    """Kept by the main process (`kept`); the others of a run have one too, which says nothing."""

    def __init__(self, out: Path, watchers: Progress, advisor: Advisor, kept: bool = True) -> None:
        self._out = out
        self._log = Log(out, kept)
        self._watchers = watchers
        self._advisor = advisor

    def resume(self, step: int, notices: Iterable[str] = ()) -> None:
        """Go on behind a step: what the log holds beyond it is forgotten, what it holds before it is read again."""
        self._log.truncate(step)
        for record in read_log(self._out):
            self._advisor.look(record)
        for notice in notices:
            self._watchers.advised({"step": step, "advice": notice})

    def trained(self, record: dict[str, Any]) -> None:
        """A stretch of steps is done."""
        self._log.write(record)
        self._watchers.trained(record)
        self.advise(record["step"], self._advisor.look(record))

    def validated(self, record: dict[str, Any]) -> None:
        """The bound was measured."""
        self._log.write(record)
        self._watchers.validated(record)
        self.advise(record["step"], self._advisor.look(record))

    def sampled(self, record: dict[str, Any]) -> None:
        """Texts were written."""
        self._log.write(record)
        self._watchers.sampled(record)

    def advise(self, step: int, sentences: Iterable[str]) -> None:
        """Say what somebody should know."""
        for sentence in sentences:
            record = {"step": step, "advice": sentence}
            self._log.write(record)
            self._watchers.advised(record)


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
