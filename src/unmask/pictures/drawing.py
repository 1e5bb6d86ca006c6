"""Writing pictures of a walk to where the user wants them: the place is checked before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.errors import UnmaskError
from unmask.files import must_be_a_place_for
from unmask.pictures.gif import write_gif
from unmask.pictures.html import write_html
from unmask.pictures.png import write_png

if TYPE_CHECKING:
    from unmask.scribe import Frame


def check_pictures(**wanted: Path | None) -> list[Path]:
    """The files to write, of `html=`, `gif=` and `png=`; refuses those that cannot be written."""
    paths = {kind: path for kind, path in wanted.items() if path is not None}
    for kind, path in paths.items():
        if path.suffix.lower() != f".{kind}":
            raise UnmaskError(f"'{path}' does not end in .{kind}; name the file so.")
        must_be_a_place_for(path)
    return list(paths.values())


def draw(frames: Sequence[Frame], paths: Iterable[Path], caption: str = "") -> None:
    """Write one walk into each file, as its ending says; how many calls it took is known to every frame by now."""
    frames = [replace(frame, calls=frames[-1].calls) for frame in frames]
    writers: dict[str, Callable[[Sequence[Frame], Path], None]] = {
        ".html": partial(write_html, caption=caption),
        ".gif": write_gif,
        ".png": write_png,
    }
    for path in paths:
        writers[path.suffix.lower()](frames, path)
