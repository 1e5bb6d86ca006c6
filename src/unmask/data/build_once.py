"""Cached folders that are built once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from unmask.errors import UnmaskError


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
