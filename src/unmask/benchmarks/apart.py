"""Work in a process of its own, which ends with this one and leaves Ctrl-C to it."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def apart(work: Callable[..., T], *arguments: Any) -> T:
    """`work(*arguments)` of a new process, which must know both by name."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with _deaf_children():
            future = pool.submit(work, *arguments)
        try:
            return future.result()
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.kill()
            raise


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that are started meanwhile never hear of an interrupt, which the terminal sends to all of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
