"""What a person sees of a run: one line with step, loss, validation, speed and time left; nothing in a pipe."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


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

    def close(self) -> None:
        """Nothing more will come."""


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
        self._bar.update(self._task, validation=f"validation {_bits(record)}  ")

    def close(self) -> None:
        self._status.stop()
        self._bar.stop()


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
        self._say(f"step {record['step']}/{self._steps}: validation {_bits(record)} bits/token")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, soft_wrap=True)


def progress_for(console: Console, verbose: bool = False) -> Progress:
    """A bar on a terminal; elsewhere nothing, or plain lines when they are asked for."""
    if console.is_terminal:
        return Bar(console)
    return Lines(console) if verbose else Progress()


def _bits(record: dict[str, Any]) -> str:
    validation = record["validation"]
    return f"{validation['bits_per_token']:.3f} ± {validation['bits_per_token_mc_stderr']:.3f}"


def _short(number: float) -> str:
    """1234567 as 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"
