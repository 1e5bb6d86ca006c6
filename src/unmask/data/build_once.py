"""Cached folders that are built once, and a reader thread."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from unmask.errors import UnmaskError

T = TypeVar("T")


def cache_dir() -> Path:
    """Return ``$UNMASK_CACHE``, else ``$XDG_CACHE_HOME/unmask``, else ``~/.cache/unmask``."""
    if own := os.environ.get("UNMASK_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


def build_once(path: Path, is_complete: Callable[[Path], bool], write: Callable[[Path], None]) -> None:
    """Make sure that there is a complete folder at `path`.

    A missing or damaged folder is built by `write` in another folder, which is renamed when it is complete. One process
    builds while others wait. `write` finds what a build that was killed or failed has left, and may continue from it;
    an `UnmaskError` leaves nothing.
    """
    from filelock import FileLock

    if is_complete(path):
        return
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if is_complete(path):
                return
            partial.mkdir(exist_ok=True)
            try:
                write(partial)
            except UnmaskError:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            shutil.rmtree(path, ignore_errors=True)
            os.replace(partial, path)
    except OSError as error:
        raise UnmaskError(
            f"The cache folder {path.parent} cannot be used ({error.strerror or error}); "
            "set the environment variable UNMASK_CACHE to a writable folder."
        ) from error


def prefetch(items: Iterator[T], ahead: int = 3) -> Generator[T, None, None]:
    """Yield items that are computed in another thread, at most `ahead` of them in advance."""
    end: Any = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="unmask-reader") as reader:
        coming = deque(reader.submit(next, items, end) for _ in range(ahead))
        try:
            while (item := coming.popleft().result()) is not end:
                coming.append(reader.submit(next, items, end))
                yield item
        finally:
            reader.shutdown(cancel_futures=True)
