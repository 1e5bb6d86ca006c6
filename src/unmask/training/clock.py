"""Wall-clock time of a run, over all its resumptions, and of the training between two log lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Starts when it is made; so many seconds of the run, and of the stretch at hand, are already behind it."""

    def __init__(self, seconds: float = 0.0, lap: float = 0.0) -> None:
        now = time.monotonic()
        self._start = now - seconds
        self._lap = now - lap

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return time.monotonic() - self._start

    @property
    def lap(self) -> float:
        """Seconds since the last `begin_lap`, without pauses."""
        return time.monotonic() - self._lap

    def begin_lap(self) -> None:
        """A new stretch of training begins."""
        self._lap = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is no training."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._lap += time.monotonic() - start
