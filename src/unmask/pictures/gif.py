"""An animation of a canvas being unmasked, small enough for a README."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.files import atomic_bytes
from unmask.pictures.frames import spread
from unmask.pictures.painter import Painter, need_pillow

if TYPE_CHECKING:
    from unmask.generation import Frame

MOMENTS = 60
LETTER = 16
COLOURS = 64
SECONDS = 6.0
SLOWEST, FIRST, LAST = 400, 700, 3000
"""Milliseconds: of a moment at most, of the empty canvas, and of the finished text before it begins again."""


def write_gif(frames: Sequence[Frame], path: Path) -> None:
    """Draw at most `MOMENTS` canvases, evenly spread, as a loop of some seconds."""
    painter = Painter(frames, LETTER)
    images = [painter.paint(frame) for frame in spread(frames, MOMENTS)]
    palette = _palette(images)
    first, *rest = [image.quantize(palette=palette, dither=0) for image in images]
    buffer = io.BytesIO()
    first.save(buffer, "GIF", save_all=True, append_images=rest, duration=durations(len(images)), loop=0, optimize=True)
    atomic_bytes(path, buffer.getvalue())


def durations(moments: int) -> list[int]:
    """Milliseconds that each of so many moments stays."""
    if moments == 1:
        return [LAST]
    each = min(SLOWEST, round(1000 * SECONDS / moments))
    return [FIRST, *[each] * (moments - 2), LAST]


def _palette(images: Sequence[Any]) -> Any:
    """Colours of the empty, the half-written and the finished canvas; one palette for all keeps the file small."""
    chosen = [images[0], images[len(images) // 3], images[2 * len(images) // 3], images[-1]]
    width, height = images[0].size
    sheet = need_pillow()[0].new("RGB", (width, height * len(chosen)))
    for number, image in enumerate(chosen):
        sheet.paste(image, (0, number * height))
    return sheet.quantize(COLOURS, dither=0)
