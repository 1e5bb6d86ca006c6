"""Callbacks of a training run: the run log, progress for people, and experiment trackers.

Every record of a run is one line of JSON in log.jsonl and is passed on to the callbacks. It has a `step` and either

- `loss` and `bits_per_token` with their `denominator` (missing in logs of earlier versions: positions), `grad_norm`,
  `cross_entropy` by mask rate, `learning_rate`, `tokens_per_second` (all counted positions), `memory_gib`, `mfu` and
  `seconds` (training),
- `validation`: the bound with its errors, and `foresight`: the metrics of a planner, if one is trained,
- `samples`: generated texts, or
- `advice`: one sentence.
"""

from __future__ import annotations

import json
import math
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, redirect_stdout
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from unmask.errors import UnmaskError, first_line
from unmask.io import atomic_text

if TYPE_CHECKING:
    from unmask.training.advice import Advisor

LOG = "log.jsonl"
SHOWN_CHARACTERS = 100
"""Characters of a sample shown to people."""
SECONDS_BETWEEN_LINES = 30.0
MEASURED_SECONDS = 5.0
"""Duration of steps that must be seen before the time left is estimated."""
TRACKERS = "trackers"
PROJECT = "unmask"


class Callback:
    """Receives the events of a run. This one ignores them; subclasses override what they need."""

    def on_data(self, part: str, done: int, total: int) -> None:
        """`done` of `total` characters of a part of the data are encoded; with `total` 0 they are only read."""

    def on_begin(self, step: int, steps: int) -> None:
        """Training begins after `step` of `steps` steps."""

    def on_step(self) -> None:
        """One more step was taken."""

    def on_log(self, record: dict[str, Any]) -> None:
        """A record was written to the log."""

    def close(self) -> None:
        """The run is over."""


class CallbackList(Callback):
    """Passes every event on to several callbacks in turn."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = list(callbacks)

    def on_data(self, part: str, done: int, total: int) -> None:
        for callback in self._callbacks:
            callback.on_data(part, done, total)

    def on_begin(self, step: int, steps: int) -> None:
        for callback in self._callbacks:
            callback.on_begin(step, steps)

    def on_step(self) -> None:
        for callback in self._callbacks:
            callback.on_step()

    def on_log(self, record: dict[str, Any]) -> None:
        for callback in self._callbacks:
            callback.on_log(record)

    def close(self) -> None:
        """Close all callbacks, even if one of them fails."""
        with ExitStack() as stack:
            for callback in reversed(self._callbacks):
                stack.callback(callback.close)


class RunLogger:
    """Writes records to log.jsonl, passes them on to the callbacks and adds advice. Does nothing unless `enabled`."""

    def __init__(self, out: Path, callbacks: Callback, advisor: Advisor, enabled: bool = True) -> None:
        self._out = out
        self._callbacks = callbacks
        self._advisor = advisor
        self._enabled = enabled

    def log(self, record: dict[str, Any]) -> None:
        """Write a record, which is on disk for other processes when this returns."""
        if not self._enabled:
            return
        with (self._out / LOG).open("a", encoding="utf-8") as file:
            file.write(_to_json(record))
        self._callbacks.on_log(record)
        for sentence in self._advisor.look(record):
            self.log({"step": record["step"], "advice": sentence})

    def resume(self, step: int, notices: Iterable[str] = ()) -> None:
        """Drop the records after `step`, show the others to the advisor, and show `notices` to people."""
        if not self._enabled:
            return
        kept = [record for record in read_log(self._out) if record["step"] <= step]
        atomic_text(self._out / LOG, "".join(map(_to_json, kept)))
        for record in kept:
            self._advisor.look(record)
        for notice in notices:
            self._callbacks.on_log({"step": step, "advice": notice})


def read_log(out: Path) -> list[dict[str, Any]]:
    """The records of a run's log, without a last line that a crash cut off."""
    path = out / LOG
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


def _to_json(record: dict[str, Any]) -> str:
    def without_nan(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_nan(inner) for key, inner in value.items()}
        return None if isinstance(value, float) and math.isnan(value) else value

    return json.dumps(without_nan(record), allow_nan=False) + "\n"


class TimeLeft(Callback):
    """Estimates the time left from the steps after the first one, which may compile kernels.

    `text` is empty until `MEASURED_SECONDS` of steps have been seen.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.step: float = 0
        self.steps = 0
        self.text = ""
        self._first: tuple[float, float] | None = None

    def on_begin(self, step: int, steps: int) -> None:
        self.step, self.steps = step, steps

    def on_step(self) -> None:
        self.advance(1)

    def advance(self, steps: float) -> None:
        """Count steps, which take equally long."""
        now = self._clock()
        self.step += steps
        if self._first is None:
            self._first = self.step, now
        elif (seconds := now - self._first[1]) >= MEASURED_SECONDS:
            left = seconds / (self.step - self._first[0]) * (self.steps - self.step)
            self.text = f"{timedelta(seconds=round(left))} left" if left >= 0 else ""


class ProgressBar(TimeLeft):
    """A progress bar for a terminal; validations, samples and advice stay above it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn("step {task.completed}/{task.total}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
        )
        self._status = console.status("")
        self._task = self._bar.add_task("", figures="", left="", visible=False)

    def on_data(self, part: str, done: int, total: int) -> None:
        shown = f"encoding the {part} text: {_short(done)} of {_short(total)}" if total else f"reading: {_short(done)}"
        self._status.update(f"{shown} characters")
        self._status.start()

    def on_begin(self, step: int, steps: int) -> None:
        super().on_begin(step, steps)
        self._status.stop()
        self._bar.reset(self._task, total=steps, completed=step, visible=True)
        self._bar.start()

    def on_step(self) -> None:
        super().on_step()
        self._bar.update(self._task, advance=1, left=self.text)

    def on_log(self, record: dict[str, Any]) -> None:
        if "loss" in record:
            self._bar.update(self._task, figures=_figures(record))
        else:
            style = "yellow" if "advice" in record else "dim"
            line = f"[{style}]{escape(_describe(record, self.steps))}[/{style}]"
            self._bar.console.print(line, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._status.stop()
        self._bar.stop()


class ProgressLines(TimeLeft):
    """Plain lines: every record if `verbose`; else advice, and the newest figures every `SECONDS_BETWEEN_LINES`."""

    def __init__(self, console: Console, verbose: bool, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._console = console
        self._verbose = verbose
        self._record: dict[str, Any] | None = None
        self._printed_at = clock()

    def on_step(self) -> None:
        super().on_step()
        if not self._verbose and self._clock() - self._printed_at >= SECONDS_BETWEEN_LINES:
            figures = f": {_figures(self._record)}" if self._record else ""
            left = f", {self.text}" if self.text else ""
            self._print(f"step {self.step}/{self.steps}{figures}{left}")

    def on_log(self, record: dict[str, Any]) -> None:
        if "loss" in record:
            self._record = record
        if self._verbose or "advice" in record:
            left = f", {self.text}" if "loss" in record and self.text else ""
            self._print(_describe(record, self.steps) + left)

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)
        self._printed_at = self._clock()


def make_progress(console: Console, verbose: bool = False) -> Callback:
    """A progress bar on a terminal; otherwise plain lines, all of them if `verbose`."""
    return ProgressBar(console) if console.is_terminal else ProgressLines(console, verbose)


def _describe(record: dict[str, Any], steps: int) -> str:
    step = record["step"]
    if "loss" in record:
        return f"step {step}/{steps}: {_figures(record)}"
    if "validation" in record:
        bound, planner = record["validation"], record.get("foresight")
        line = f"{bound['bits_per_token']:.3f} ± {bound['bits_per_token_mc_stderr']:.3f} bits/token"
        if planner is not None and planner["gain_stderr"] is not None:
            line += f", AUC {planner['planner']:.4f} ({planner['gain']:+.4f} ± {planner['gain_stderr']:.4f})"
        return f"step {step}/{steps}: validation {line}"
    if "samples" in record:
        text = " ".join(record["samples"][0].split())
        shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
        return f"step {step}: writes “{shown}”"
    return f"step {step}: {record['advice']}"


def _figures(record: dict[str, Any]) -> str:
    return f"{record['bits_per_token']:.3f} bits/token, {_short(record['tokens_per_second'])} tokens/s"


def _short(number: float) -> str:
    """1234567 as 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


class Trackers(Callback):
    """Passes records on to TensorBoard, Weights & Biases or trackio, through Accelerate's trackers.

    Their files and the id of the run are in OUT/trackers, so that a resumed run continues there. A tracker that fails
    during the run is dropped with a warning.
    """

    def __init__(self, names: Sequence[str], out: Path, recipe: dict[str, Any]) -> None:
        for name in names:
            if find_spec(name) is None:
                raise UnmaskError(
                    f"training.trackers names '{name}', which is not installed; run: pip install 'unmask[track]', "
                    "or leave it out."
                )
        self._names = names
        self._out = out
        self._recipe = recipe
        self._trackers: dict[str, Any] = {}

    def on_begin(self, step: int, steps: int) -> None:
        for name in self._names:
            try:
                with redirect_stdout(sys.stderr):  # standard output is for --json
                    self._trackers[name] = _open_tracker(name, self._out.absolute(), self._recipe, step)
            except Exception as error:
                raise UnmaskError(
                    f"The tracker '{name}' could not be started ({first_line(error)}); set it up, or remove it from "
                    "training.trackers."
                ) from error

    def on_log(self, record: dict[str, Any]) -> None:
        step = record["step"]
        if "samples" in record:
            self._each(lambda name, tracker: _log_texts(name, tracker, "samples", record["samples"], step))
        elif "advice" in record:
            self._each(lambda name, tracker: _log_texts(name, tracker, "advice", [record["advice"]], step))
        else:
            self._each(lambda name, tracker: tracker.log(_scalars(record), step=step))

    def close(self) -> None:
        self._each(lambda name, tracker: tracker.finish())
        self._trackers.clear()

    def _each(self, call: Callable[[str, Any], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                with redirect_stdout(sys.stderr):
                    call(name, tracker)
            except Exception as error:
                del self._trackers[name]
                warnings.warn(f"The tracker '{name}' failed and is no longer used: {error}", stacklevel=2)


def _open_tracker(name: str, out: Path, recipe: dict[str, Any], step: int) -> Any:
    from accelerate import tracking

    tracker: Any
    if name == "tensorboard":
        # Hide the records after the last checkpoint of a killed run: they will be written again.
        purge = {"purge_step": step + 1} if step else {}
        tracker = tracking.TensorBoardTracker(TRACKERS, logging_dir=out, **purge)
    elif name == "wandb":
        folder = out / TRACKERS
        folder.mkdir(parents=True, exist_ok=True)
        saved = folder / "run-id"
        if not saved.is_file():
            atomic_text(saved, uuid.uuid4().hex)
        run_id = saved.read_text(encoding="utf-8")
        options: dict[str, Any] = {"id": run_id, "resume": "allow", "dir": str(folder)}
        tracker = tracking.WandBTracker(PROJECT, name=out.name, config=recipe, **options)
    else:
        resume = "allow" if step else "never"
        tracker = tracking.TrackioTracker(PROJECT, name=out.name, config=recipe, resume=resume, embed=False)
    tracker.start()
    if name == "tensorboard":
        _log_texts(name, tracker, "recipe", [yaml.safe_dump(recipe, sort_keys=False)], step)
    return tracker


def _log_texts(name: str, tracker: Any, key: str, texts: list[str], step: int) -> None:
    if name == "wandb":
        tracker.log_table(key, columns=["text"], data=[[text] for text in texts], step=step)
        return
    blocks = ["\n".join(f"    {line}" for line in text.split("\n")) for text in texts]
    markdown = "\n\n---\n\n".join(blocks)
    if name == "trackio":
        import trackio

        tracker.log({key: trackio.Markdown(markdown)}, step=step)
    else:
        tracker.log({key: markdown}, step=step)


def _scalars(record: dict[str, Any]) -> dict[str, float]:
    """The known numbers of a training or validation record, as `group/name`."""
    if "validation" in record:
        bound = record["validation"]
        units = {key: value for key, value in bound.items() if key.startswith(("bits_per_", "perplexity"))}
        groups = {"validation": units, "foresight": record.get("foresight", {})}
    else:
        buckets = record["cross_entropy"]
        by_rate = {f"{i / len(buckets):.1f}-{(i + 1) / len(buckets):.1f}": value for i, value in enumerate(buckets)}
        rest = {key: value for key, value in record.items() if key not in ("step", "cross_entropy", "denominator")}
        groups = {"train": rest, "cross_entropy": by_rate}
    scalars = {f"{group}/{key}": value for group, values in groups.items() for key, value in values.items()}
    return {name: value for name, value in scalars.items() if value is not None}
