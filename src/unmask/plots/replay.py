"""Writing pictures of a walk to where the user wants them: the place is checked before anything is computed."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.io import atomic_text
from unmask.plots.colours import SCALE
from unmask.plots.painter import changes, shown_positions

if TYPE_CHECKING:
    from unmask.text_processor import Frame
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unmask.errors import UnmaskError
from unmask.io import check_output_file
from unmask.plots.painter import write_gif, write_png

TEMPLATE = "replay.html"
_UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def write_html(frames: Sequence[Frame], path: Path, caption: str = "") -> None:
    """Write the replay of one walk; `caption` stands below its title."""
    atomic_text(path, page(frames, caption))


def page(frames: Sequence[Frame], caption: str = "") -> str:
    """The page as a string."""
    template = files("unmask.plots").joinpath(TEMPLATE).read_text(encoding="utf-8")
    before, between, after = _parts(template)
    return f"{before}{html.escape(caption)}{between}{script_safe(replay(frames))}{after}"


def replay(frames: Sequence[Frame]) -> dict[str, Any]:
    """What the page knows.

    `start` and `finished`: what the first and the last canvas show, None at a mask. `calls`: the changes of each
    network call, as (position, piece, order, confidence). `hidden`: positions behind the end of the text.
    """
    shown = shown_positions(frames)
    return {
        "start": frames[0].pieces[:shown],
        "finished": frames[-1].pieces[:shown],
        "calls": [
            [(*change[:3], round(change.confidence, 4)) for change in changes(before, after, shown)]
            for before, after in pairwise(frames)
        ],
        "hidden": len(frames[-1].ids) - shown,
        "scale": SCALE,
    }


def script_safe(data: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever the text says."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_UNSAFE)


def _parts(template: str) -> tuple[str, str, str]:
    """The template around its two holes; filled at once, so that no text can be taken for a hole."""
    before, rest = template.split("{{caption}}")
    between, after = rest.split("{{replay}}")
    return before, between, after


def check_pictures(**wanted: Path | None) -> list[Path]:
    """The files to write, of `html=`, `gif=` and `png=`; refuses those that cannot be written."""
    paths = {kind: path for kind, path in wanted.items() if path is not None}
    for kind, path in paths.items():
        if path.suffix.lower() != f".{kind}":
            raise UnmaskError(f"'{path}' does not end in .{kind}; name the file so.")
        check_output_file(path)
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
