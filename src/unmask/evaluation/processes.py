"""Functions in processes side by side."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import Any

REPORT_SECONDS = 1.0
STOP_SECONDS = 3.0
"""Seconds after which processes that Ctrl-C did not stop get SIGTERM."""


def run_side_by_side(
    function: Callable[..., None],
    calls: Sequence[tuple[Any, ...]],
    jobs: int,
    report: Callable[[], None] = lambda: None,
) -> Iterator[int]:
    """Call a function with each of the arguments in `jobs` processes, and yield the number of each call that is done.

    Small networks leave a GPU waiting for the processor most of the time, so several processes share it well. After a
    signal or an error the calls that are running save what they must, and no other begins. `report` is called now and
    then.
    """
    import torch

    from unmask.training import Interrupted

    threads = max(1, torch.get_num_threads() // jobs)
    spawn = multiprocessing.get_context("spawn")
    waiting, running = iter(enumerate(calls)), dict[Future[None], int]()
    with sigterm_exits(), ProcessPoolExecutor(jobs, spawn, _begin_process, (threads,)) as pool:
        try:
            while True:
                # not all at once: calls in the queue of a pool start even after a signal
                for number, arguments in islice(waiting, jobs - len(running)):
                    running[pool.submit(_call, function, *arguments)] = number
                if not running:
                    return
                for future in wait(running, REPORT_SECONDS, return_when=FIRST_COMPLETED).done:
                    number = running.pop(future)
                    future.result()
                    yield number
                report()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                wait(running, STOP_SECONDS)  # a terminal's Ctrl-C reaches these processes by itself
            for child in multiprocessing.active_children():
                child.terminate()
            stops = [future.exception() for future in running]
            if isinstance(error, Exception):
                raise
            raise next((stop for stop in stops if isinstance(stop, Interrupted)), error) from None


def _begin_process(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # between calls; a process that ends breaks the pool


def _call(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function that signals can stop."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with sigterm_exits():
        try:
            function(*arguments)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Turn SIGTERM into a `SystemExit`, so that processes side by side are stopped and locks are released."""
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: Any) -> None:
    sys.exit(128 + number)
