"""An animation of a canvas being unmasked, small enough for a README."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.files import atomic_bytes
from unmask.pictures.frames import spread
from unmask.pictures.painter import Painter, with_few_colours

if TYPE_CHECKING:
    from unmask.scribe import Frame

MOMENTS = 60
LETTER = 16
SECONDS = 6.0
SLOWEST, FIRST, LAST = 400, 700, 3000
"""Milliseconds: of a moment at most, of the empty canvas, and of the finished text before it begins again."""


def write_gif(frames: Sequence[Frame], path: Path) -> None:
    """Draw at most `MOMENTS` canvases, evenly spread, as a loop of some seconds."""
    painter = Painter(frames, LETTER)
    first, *rest = [with_few_colours(painter.paint(frame)) for frame in spread(frames, MOMENTS)]
    buffer = io.BytesIO()
    times = durations(1 + len(rest))
    first.save(buffer, "GIF", save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    atomic_bytes(path, buffer.getvalue())


def durations(moments: int) -> list[int]:
    """Milliseconds that each of so many moments stays."""
    if moments == 1:
        return [LAST]
    each = min(SLOWEST, round(1000 * SECONDS / moments))
    return [FIRST, *[each] * (moments - 2), LAST]
