"""A still: several moments of one canvas side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unmask.text_processor import Frame
import io
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont

from unmask.io import atomic_bytes
from unmask.plots.colours import RGB, blend, of_confidence, rgb


class Change(NamedTuple):
    """What a position shows from one call on: a mask where `piece` is None."""

    position: int
    piece: str | None
    order: int
    confidence: float


def shown_positions(frames: Sequence[Frame]) -> int:
    """Positions up to the end of the finished text, the EOS there included; what lies behind it is no text."""
    return min(frames[-1].end + 1, len(frames[-1].ids))


def changes(before: Frame, after: Frame, positions: int) -> list[Change]:
    """The positions that two canvases show differently, as the later one shows them.

    A call may also change what an older token shows: the last byte of a letter completes those before it.
    """
    rows = zip(before.pieces, after.pieces, before.order, after.order, after.confidence, strict=True)
    return [
        Change(position, now, order, confidence)
        for position, (was, now, earlier, order, confidence) in enumerate(rows)
        if position < positions and (was, earlier) != (now, order)
    ]


def spread(frames: Sequence[Frame], count: int) -> list[Frame]:
    """At most `count` frames, evenly spread, the first and the last among them."""
    last = len(frames) - 1
    return [frames[i] for i in sorted({round(k * last / max(1, count - 1)) for k in range(count)} | {last})][-count:]


RETURN, TAB, ODD = "⏎", "⇥", "·"
_SHORT = {"\n": RETURN, "\r": RETURN, "\t": TAB}


class Chip(NamedTuple):
    """The visible part of a token on one line; a token that is broken over two lines has two."""

    line: int
    column: int
    token: int
    text: str


class _Letter(NamedTuple):
    token: int
    character: str
    solid: bool


def lay_out(pieces: Sequence[str], width: int) -> list[Chip]:
    """Set the tokens line by line, broken between words; a new line in the text is shown and obeyed."""
    placed = list(_placed(pieces, width))
    chips = []
    for (line, _, solid), run in groupby(placed, key=lambda cell: (cell[0], cell[2].token, cell[2].solid)):
        if solid:
            cells = list(run)
            chips.append(Chip(line, cells[0][1], cells[0][2].token, "".join(cell[2].character for cell in cells)))
    return chips


def _placed(pieces: Sequence[str], width: int) -> Iterator[tuple[int, int, _Letter]]:
    """Line, column and letter. A blank at the end of a line hangs over the margin."""
    line = column = 0
    for word in _words(pieces):
        size = sum(letter.character != " " for letter in word)
        if column and column + size > width >= size:
            line, column = line + 1, 0
        for letter in word:
            if column >= width and letter.character not in (" ", RETURN):
                line, column = line + 1, 0
            yield line, column, letter
            column += 1
            if letter.character == RETURN:
                line, column = line + 1, 0


def _words(pieces: Sequence[str]) -> Iterator[list[_Letter]]:
    """Letters up to and including a blank or the end of a line."""
    word: list[_Letter] = []
    for token, piece in enumerate(pieces):
        for character in piece:
            shown = _SHORT.get(character, character if character.isprintable() else ODD)
            word.append(_Letter(token, shown, shown != " " or not piece.strip(" ")))
            if shown in (" ", RETURN):
                yield word
                word = []
    yield word


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


PANELS = 6
PNG_LETTER = 22


def write_png(frames: Sequence[Frame], path: Path, panels: int = PANELS) -> None:
    """Draw up to `panels` canvases of one walk, evenly spread, in two columns that are read line by line."""
    painter = Painter(frames, PNG_LETTER)
    shown = spread(frames, panels)
    columns = min(2, len(shown))
    width, height = painter.size
    sheet = Image.new("RGB", (columns * width, -(-len(shown) // columns) * height), PAPER)
    for number, frame in enumerate(shown):
        sheet.paste(painter.paint(frame), (number % columns * width, number // columns * height))
    buffer = io.BytesIO()
    with_few_colours(sheet).save(buffer, "PNG", optimize=True)
    atomic_bytes(path, buffer.getvalue())
