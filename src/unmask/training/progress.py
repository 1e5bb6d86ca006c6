"""Who watches a run, and what a person sees of it: one line with step, loss and time left; nothing in a pipe.

A watcher is told what is written to log.jsonl, record by record, and the little that is not (reading, steps).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

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
