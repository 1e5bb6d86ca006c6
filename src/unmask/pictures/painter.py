"""One frame as an image, painted with Pillow; stills and animations are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from unmask.pictures.colours import RGB, blend, of_confidence, rgb
from unmask.pictures.frames import shown_positions
from unmask.pictures.layout import ODD, Chip, lay_out

if TYPE_CHECKING:
    from unmask.scribe import Frame

COLUMNS = 64
INK, GREY, PAPER, EMPTY = rgb("#1b1f24"), rgb("#727b85"), rgb("#ffffff"), rgb("#e4e8ed")
WRITTEN, FRESH = 0.26, 0.62
"""How much of the paper a token's colour covers, and that of a token which the last call wrote."""
LEVELS = 12
"""Confidences that a picture tells apart."""
FINER = 2
"""Everything is painted so many times larger and then reduced: Pillow's round corners have steps."""


class Painter:
    """Paints the frames of one walk, each token where it stands in the finished text; `size` is the letters' height."""

    def __init__(self, frames: Sequence[Frame], size: int) -> None:
        import matplotlib

        folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        size *= FINER
        self._font = ImageFont.truetype(str(folder / "DejaVuSansMono.ttf"), size)
        self._small = ImageFont.truetype(str(folder / "DejaVuSans.ttf"), round(size * 0.72))
        self._finished = [piece or "" for piece in frames[-1].pieces[: shown_positions(frames)]]
        self._chips = lay_out(self._finished, COLUMNS)
        self._letter, self._line = self._font.getlength("M"), round(size * 1.62)
        self._margin, self._head = round(size * 1.1), round(size * 2.1)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height of every image."""
        width, height = self._large
        return width // FINER, height // FINER

    @cached_property
    def _large(self) -> tuple[int, int]:
        lines = max((chip.line for chip in self._chips), default=0) + 1
        width = round((COLUMNS + 1) * self._letter) + 2 * self._margin
        height = self._head + lines * self._line + self._margin
        return width - width % FINER, height - height % FINER

    def paint(self, frame: Frame) -> Any:
        """The canvas of a frame: grey where masked, colour by confidence, stronger where just written."""
        image = Image.new("RGB", self._large, PAPER)
        draw = ImageDraw.Draw(image)
        self._paint_head(draw, frame)
        for chip in self._chips:
            self._paint_chip(draw, chip, frame)
        return image.reduce(FINER)

    def _paint_head(self, draw: Any, frame: Frame) -> None:
        """Which call it is, and a bar that fills."""
        left, right, middle = self._margin, self._large[0] - self._margin, round(self._head * 0.55)
        text = f"call {frame.call} of {frame.calls}"
        draw.text((left, middle), text, fill=GREY, font=self._small, anchor="lm")
        start = left + round(self._small.getlength(f"call {frame.calls} of {frame.calls}")) + self._margin
        thick = max(2, self._head // 14)
        draw.rounded_rectangle((start, middle - thick, right, middle + thick), thick, fill=EMPTY)
        done = start + round((right - start) * frame.call / max(1, frame.calls))
        if frame.call:
            draw.rounded_rectangle((start, middle - thick, done, middle + thick), thick, fill=GREY)

    def _paint_chip(self, draw: Any, chip: Chip, frame: Frame) -> None:
        left = self._margin + (chip.column + 0.5) * self._letter
        top = self._head + chip.line * self._line
        right = left + len(chip.text) * self._letter
        gap, pad = self._line / 24, self._line / 12
        fill = chip_colour(frame, chip.token)
        if fill is not None:
            draw.rounded_rectangle(
                (left - gap / 2, top + pad, right - 1.5 * gap, top + self._line - pad), 2 * pad, fill
            )
        piece = frame.pieces[chip.token]
        if piece is not None:
            text = chip.text if piece == self._finished[chip.token] else ODD * len(chip.text)
            draw.text((left, top + self._line / 2), text, fill=INK, font=self._font, anchor="lm")


def chip_colour(frame: Frame, token: int) -> RGB | None:
    """What lies behind a token; nothing behind one that was given."""
    if frame.pieces[token] is None:
        return EMPTY
    if frame.order[token] < 0:
        return None
    fresh = frame.order[token] == frame.call - 1 and frame.call < frame.calls
    return blend(PAPER, of_confidence(frame.confidence[token]), FRESH if fresh else WRITTEN)


def with_few_colours(image: Any) -> Any:
    """The image in a palette that is the same for every walk, so that the rarest colour is as true as the paper's."""
    palette = Image.new("P", (1, 1))
    palette.putpalette([byte for colour in _palette() for byte in colour])
    return image.quantize(palette=palette, dither=0)


def _palette() -> list[RGB]:
    """Every colour behind a letter, with the shades at the edges of letters and of corners."""
    scale = [of_confidence(level / LEVELS) for level in range(LEVELS + 1)]
    behind = [PAPER, EMPTY, *(blend(PAPER, colour, cover) for cover in (WRITTEN, FRESH) for colour in scale)]
    letters = [blend(colour, INK, share) for colour in behind for share in (0.0, 0.3, 0.65)]
    corners = [blend(PAPER, colour, 0.5) for colour in behind]
    return [INK, GREY, *(blend(PAPER, GREY, share) for share in (0.25, 0.5, 0.75)), *letters, *corners]
