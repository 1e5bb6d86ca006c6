"""A still: several moments of one canvas side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from unmask.files import atomic_bytes
from unmask.pictures.frames import spread
from unmask.pictures.painter import PAPER, Painter, with_few_colours

if TYPE_CHECKING:
    from unmask.scribe import Frame

PANELS = 6
LETTER = 22


def write_png(frames: Sequence[Frame], path: Path, panels: int = PANELS) -> None:
    """Draw up to `panels` canvases of one walk, evenly spread, in two columns that are read line by line."""
    painter = Painter(frames, LETTER)
    shown = spread(frames, panels)
    columns = min(2, len(shown))
    width, height = painter.size
    sheet = Image.new("RGB", (columns * width, -(-len(shown) // columns) * height), PAPER)
    for number, frame in enumerate(shown):
        sheet.paste(painter.paint(frame), (number % columns * width, number // columns * height))
    buffer = io.BytesIO()
    with_few_colours(sheet).save(buffer, "PNG", optimize=True)
    atomic_bytes(path, buffer.getvalue())
