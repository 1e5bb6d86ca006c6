"""Ctrl-C (or a polite kill) ends a run after the step it is in, so that it can be saved and resumed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 3.0
"""Seconds within which a second signal is the same one: launchers pass on what the terminal has sent already."""


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.made = False
        self._when = 0.0

    def make(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: the first signal is a request, a later Ctrl-C stops at once."""
        now = time.monotonic()
        if self.made and number == signal.SIGINT and now - self._when > ECHO:
            raise KeyboardInterrupt
        if not self.made:
            self.made, self._when = True, now


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn signals into a request for as long as the block runs. Only the main thread can hear them."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.make) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
