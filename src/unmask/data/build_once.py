"""Making things before they are asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from unmask.errors import UnmaskError


def cache_dir() -> Path:
    """``$UNMASK_CACHE``, else ``$XDG_CACHE_HOME/unmask``, else ``~/.cache/unmask``."""
    if own := os.environ.get("UNMASK_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "unmask"


@contextmanager
def keeping_in(folder: Path) -> Iterator[None]:
    """While files are read and written in a folder of the cache: what the disk refuses is one sentence."""
    try:
        yield
    except OSError as error:
        raise UnmaskError(
            f"The cache folder {folder} cannot be used ({error.strerror or error}); "
            "set the environment variable UNMASK_CACHE to a folder that can be written."
        ) from error


try:
    import fcntl
except ImportError:  # Windows
    fcntl: Any = None  # type: ignore[no-redef]

JOURNAL = "journal.json"
_LOCK = "lock"


def build_once(place: Path, is_complete: Callable[[Path], bool], write: Callable[[Path], None]) -> None:
    """Have a folder at ``place``: ``write`` it into another one unless it is there already and complete.

    ``write`` is given what an earlier one left, where that has a journal.
    """
    if is_complete(place):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with _workplace(place) as folder:
        if not is_complete(place):
            write(folder)
            _move(folder, place, is_complete)


@contextmanager
def _workplace(place: Path) -> Iterator[Path]:
    """A folder that nobody else writes in meanwhile. It goes when the block ends, unless there is a journal in it."""
    folder = place.with_name(f".{place.name}.partial")
    lock = _lock(folder)
    if lock is None:
        with _private_folder(place) as private:
            yield private
        return
    try:
        yield folder
    finally:
        if _is_at(lock, folder / _LOCK) and not (folder / JOURNAL).exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def _private_folder(place: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """Make a folder and wait until it is ours; None where that cannot be had. To be closed, which unlocks it."""
    while fcntl is not None:
        folder.mkdir(exist_ok=True)
        try:
            handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # it was moved or removed just now
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            os.close(handle)
            return None
        if _is_at(handle, folder / _LOCK):
            return handle
        os.close(handle)
    return None


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _move(folder: Path, place: Path, is_complete: Callable[[Path], bool]) -> None:
    """Put a folder in its place, and whatever damaged one is there out of it. The lock moves along, then goes."""
    while not _moved(folder, place) and not is_complete(place):
        with _private_folder(place) as aside, contextlib.suppress(FileNotFoundError):
            os.replace(place, aside / "damaged")
    for name in (_LOCK, JOURNAL):
        (place / name).unlink(missing_ok=True)


def _moved(source: Path, target: Path) -> bool:
    """Rename a folder; False where the target is there already."""
    try:
        os.replace(source, target)
    except OSError:
        if target.exists():
            return False
        raise
    return True


T = TypeVar("T")

AHEAD = 3


def prefetch(items: Iterator[T], ahead: int = AHEAD) -> Generator[T, None, None]:
    """The same items, made in a thread of their own, at most ``ahead`` of them before they are taken."""
    end: Any = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="unmask-reader") as reader:
        coming = deque(reader.submit(next, items, end) for _ in range(ahead))
        try:
            while (item := coming.popleft().result()) is not end:
                coming.append(reader.submit(next, items, end))
                yield item
        finally:
            reader.shutdown(cancel_futures=True)
