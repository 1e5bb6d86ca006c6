"""Folders that are written once, by one process at a time, and never seen by halves.

A folder is written beside its place, as ``.NAME.partial``, and takes its name when it is complete. A lock keeps every
other process waiting, to find it done. What a killed process leaves there is where the next one goes on, if it has kept
a journal. Where files cannot be locked each process writes a folder of its own, and the first to finish wins.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
