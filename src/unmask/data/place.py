"""Where what was computed is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unmask.errors import UnmaskError


def cache_folder() -> Path:
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
