"""HTML replays of a text that is unmasked, and the writing of all pictures of one sampling run."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.io import atomic_text, check_output_file
from unmask.plots.painter import changes, shown_positions, write_gif, write_png
from unmask.plots.style import CONFIDENCE_SCALE

if TYPE_CHECKING:
    from unmask.text_processor import Frame

TEMPLATE = "replay.html"
_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


def check_pictures(**paths: Path | None) -> list[Path]:
    """The files given as `html=`, `gif=` and `png=`; raise `UnmaskError` for one that cannot be written."""
    given = {suffix: path for suffix, path in paths.items() if path is not None}
    for suffix, path in given.items():
        if path.suffix.lower() != f".{suffix}":
            raise UnmaskError(f"--{suffix} must name a file that ends in .{suffix}, got '{path}'.")
        check_output_file(path)
    return list(given.values())


def write_pictures(frames: Sequence[Frame], paths: Iterable[Path], caption: str = "") -> None:
    """Write one sampling run to each file, in the format of its suffix."""
    # Adaptive samplers know the number of calls only at the end.
    frames = [replace(frame, calls=frames[-1].calls) for frame in frames]
    for path in paths:
        if path.suffix.lower() == ".html":
            atomic_text(path, make_page(frames, caption))
        elif path.suffix.lower() == ".gif":
            write_gif(frames, path)
        else:
            write_png(frames, path)


def make_page(frames: Sequence[Frame], caption: str = "") -> str:
    """The HTML page; `caption` is the line below its title."""
    template = files("unmask.plots").joinpath(TEMPLATE).read_text(encoding="utf-8")
    # Split before inserting, so that a placeholder in the text is left alone.
    head, rest = template.split("{{caption}}")
    body, tail = rest.split("{{replay}}")
    return f"{head}{html.escape(caption)}{body}{script_json(replay_data(frames))}{tail}"


def replay_data(frames: Sequence[Frame]) -> dict[str, Any]:
    """The data of the page.

    `start` and `finished`: the pieces of the first and the last frame, None for a mask. `calls`: the changes of each
    network call, as (position, piece, order, confidence). `hidden`: the number of positions after the end of the text.
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
        "scale": CONFIDENCE_SCALE,
    }


def script_json(data: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)
