"""What a run says of itself: a line in its log, a word to those who watch it, and advice on what the log shows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unmask.training.advice import Advisor
from unmask.training.log import Log, read_log
from unmask.training.progress import Progress


class Journal:
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
