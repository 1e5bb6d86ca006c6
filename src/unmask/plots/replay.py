"""Pictures of a canvas being unmasked: an HTML replay, an animated GIF and a PNG, all drawn from frames."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from unmask.errors import UnmaskError
from unmask.io import atomic_bytes, atomic_text, check_output_file
from unmask.plots.style import CONFIDENCE_SCALE, RGB, blend, confidence_colour, rgb

if TYPE_CHECKING:
    from unmask.text_processor import Frame

COLUMNS = 64
"""Characters per line."""
NEWLINE, TAB, OTHER = "⏎", "⇥", "·"
VISIBLE = {"\n": NEWLINE, "\r": NEWLINE, "\t": TAB}
INK, GREY, PAPER, EMPTY = rgb("#1b1f24"), rgb("#727b85"), rgb("#ffffff"), rgb("#e4e8ed")
WRITTEN, FRESH = 0.26, 0.62
"""Opacities of the colour behind a token, and behind a token that the last call wrote."""
LEVELS = 12
"""Levels of confidence in the palette."""
SUPERSAMPLING = 2
"""Pictures are painted this many times larger and reduced, because Pillow does not antialias rounded corners."""

GIF_FRAMES, GIF_FONT_SIZE, GIF_SECONDS = 60, 16, 6.0
FIRST, LONGEST, LAST = 700, 400, 3000
"""Milliseconds of the empty canvas, of a frame in between at most, and of the finished text."""
PNG_PANELS, PNG_FONT_SIZE = 6, 22
TEMPLATE = "replay.html"
_ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}


class Chip(NamedTuple):
    """The visible part of a token on one line."""

    line: int
    column: int
    token: int
    text: str


class Character(NamedTuple):
    """A character of a token; a space that only separates words is not `solid`."""

    token: int
    character: str
    solid: bool


def shown_positions(frames: Sequence[Frame]) -> int:
    """Positions up to the end of the finished text, its EOS included."""
    return min(frames[-1].end + 1, len(frames[-1].ids))


def changes(before: Frame, after: Frame, positions: int) -> list[tuple[int, str | None, int, float]]:
    """What differs in the first positions of a later frame: (position, piece, order, confidence), None for a mask.

    A call may also change what an older token shows: the last byte of a character completes those before it.
    """
    return [
        (i, after.pieces[i], after.order[i], round(after.confidence[i], 4))
        for i in range(positions)
        if (before.pieces[i], before.order[i]) != (after.pieces[i], after.order[i])
    ]


def select_frames(frames: Sequence[Frame], count: int) -> list[Frame]:
    """At most `count` frames, evenly spaced, including the first and the last."""
    last = len(frames) - 1
    return [frames[i] for i in sorted({round(k * last / max(1, count - 1)) for k in range(count)} | {last})][-count:]


def lay_out(pieces: Sequence[str], width: int) -> list[Chip]:
    """Break tokens into lines between words; a newline in the text is shown and ends the line."""
    chips = []
    for (line, _, solid), run in groupby(
        _place(pieces, width), key=lambda cell: (cell[0], cell[2].token, cell[2].solid)
    ):
        if solid:
            cells = list(run)
            chips.append(Chip(line, cells[0][1], cells[0][2].token, "".join(cell[2].character for cell in cells)))
    return chips


def _place(pieces: Sequence[str], width: int) -> Iterator[tuple[int, int, Character]]:
    """Yield line, column and character; a space at the end of a line may exceed the width."""
    line = column = 0
    for word in _words(pieces):
        size = sum(one.character != " " for one in word)
        if column and column + size > width >= size:
            line, column = line + 1, 0
        for one in word:
            if column >= width and one.character not in (" ", NEWLINE):
                line, column = line + 1, 0
            yield line, column, one
            column += 1
            if one.character == NEWLINE:
                line, column = line + 1, 0


def _words(pieces: Sequence[str]) -> Iterator[list[Character]]:
    """Yield words as characters, up to and including a space or newline."""
    word: list[Character] = []
    for token, piece in enumerate(pieces):
        for character in piece:
            shown = VISIBLE.get(character, character if character.isprintable() else OTHER)
            word.append(Character(token, shown, shown != " " or not piece.strip(" ")))
            if shown in (" ", NEWLINE):
                yield word
                word = []
    yield word


class Painter:
    """Paints the frames of one sampling run; each token is where it is in the finished text."""

    def __init__(self, frames: Sequence[Frame], font_size: int) -> None:
        import matplotlib

        fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        size = font_size * SUPERSAMPLING
        self._font = ImageFont.truetype(str(fonts / "DejaVuSansMono.ttf"), size)
        self._small = ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), round(size * 0.72))
        self._finished = [piece or "" for piece in frames[-1].pieces[: shown_positions(frames)]]
        self._chips = lay_out(self._finished, COLUMNS)
        self._letter, self._line = self._font.getlength("M"), round(size * 1.62)
        self._margin, self._header = round(size * 1.1), round(size * 2.1)
        lines = max((chip.line for chip in self._chips), default=0) + 1
        width = round((COLUMNS + 1) * self._letter) + 2 * self._margin
        height = self._header + lines * self._line + self._margin
        self.size = width // SUPERSAMPLING, height // SUPERSAMPLING

    def paint(self, frame: Frame) -> Any:
        """The canvas of a frame: masks are grey, tokens coloured by confidence, stronger if just written."""
        large = self.size[0] * SUPERSAMPLING, self.size[1] * SUPERSAMPLING
        image = Image.new("RGB", large, PAPER)
        draw = ImageDraw.Draw(image)
        self._paint_header(draw, frame, large[0])
        for chip in self._chips:
            self._paint_chip(draw, chip, frame)
        return image.reduce(SUPERSAMPLING)

    def _paint_header(self, draw: Any, frame: Frame, width: int) -> None:
        """The number of the call and a progress bar."""
        left, right, middle = self._margin, width - self._margin, round(self._header * 0.55)
        text = f"call {frame.call} of {frame.calls}"
        draw.text((left, middle), text, fill=GREY, font=self._small, anchor="lm")
        start = left + round(self._small.getlength(f"call {frame.calls} of {frame.calls}")) + self._margin
        thick = max(2, self._header // 14)
        draw.rounded_rectangle((start, middle - thick, right, middle + thick), thick, fill=EMPTY)
        done = start + round((right - start) * frame.call / max(1, frame.calls))
        if frame.call:
            draw.rounded_rectangle((start, middle - thick, done, middle + thick), thick, fill=GREY)

    def _paint_chip(self, draw: Any, chip: Chip, frame: Frame) -> None:
        left = self._margin + (chip.column + 0.5) * self._letter
        top = self._header + chip.line * self._line
        right = left + len(chip.text) * self._letter
        gap, pad = self._line / 24, self._line / 12
        fill = chip_colour(frame, chip.token)
        if fill is not None:
            box = (left - gap / 2, top + pad, right - 1.5 * gap, top + self._line - pad)
            draw.rounded_rectangle(box, 2 * pad, fill)
        piece = frame.pieces[chip.token]
        if piece is not None:
            text = chip.text if piece == self._finished[chip.token] else OTHER * len(chip.text)
            draw.text((left, top + self._line / 2), text, fill=INK, font=self._font, anchor="lm")


def chip_colour(frame: Frame, token: int) -> RGB | None:
    """The colour behind a token; None if the token was given."""
    if frame.pieces[token] is None:
        return EMPTY
    if frame.order[token] < 0:
        return None
    fresh = frame.order[token] == frame.call - 1 and frame.call < frame.calls
    return blend(PAPER, confidence_colour(frame.confidence[token]), FRESH if fresh else WRITTEN)


def quantize(image: Any) -> Any:
    """Reduce an image to a palette of the colours behind tokens, and of the shades at the edges of letters and corners.

    An adaptive palette would distort rare colours.
    """
    scale = [confidence_colour(level / LEVELS) for level in range(LEVELS + 1)]
    behind = [PAPER, EMPTY, *(blend(PAPER, colour, opacity) for opacity in (WRITTEN, FRESH) for colour in scale)]
    letters = [blend(colour, INK, opacity) for colour in behind for opacity in (0.0, 0.3, 0.65)]
    corners = [blend(PAPER, colour, 0.5) for colour in behind]
    colours = [INK, GREY, *(blend(PAPER, GREY, opacity) for opacity in (0.25, 0.5, 0.75)), *letters, *corners]
    palette = Image.new("P", (1, 1))
    palette.putpalette([byte for colour in colours for byte in colour])
    return image.quantize(palette=palette, dither=0)


def durations(count: int) -> list[int]:
    """Milliseconds of each of `count` frames of a GIF."""
    if count == 1:
        return [LAST]
    each = min(LONGEST, round(1000 * GIF_SECONDS / count))
    return [FIRST, *[each] * (count - 2), LAST]


def write_gif(frames: Sequence[Frame], path: Path) -> None:
    """Write an endless animation of at most `GIF_FRAMES` frames."""
    painter = Painter(frames, GIF_FONT_SIZE)
    first, *rest = [quantize(painter.paint(frame)) for frame in select_frames(frames, GIF_FRAMES)]
    buffer = io.BytesIO()
    times = durations(1 + len(rest))
    first.save(buffer, "GIF", save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    atomic_bytes(path, buffer.getvalue())


def write_png(frames: Sequence[Frame], path: Path, panels: int = PNG_PANELS) -> None:
    """Write up to `panels` frames of one sampling run in two columns."""
    painter = Painter(frames, PNG_FONT_SIZE)
    shown = select_frames(frames, panels)
    columns = min(2, len(shown))
    width, height = painter.size
    sheet = Image.new("RGB", (columns * width, -(-len(shown) // columns) * height), PAPER)
    for number, frame in enumerate(shown):
        sheet.paste(painter.paint(frame), (number % columns * width, number // columns * height))
    buffer = io.BytesIO()
    quantize(sheet).save(buffer, "PNG", optimize=True)
    atomic_bytes(path, buffer.getvalue())


# ---- files -----------------------------------------------------------------------------------------------------------


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
    data = json.dumps(replay_data(frames), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"{head}{html.escape(caption)}{body}{data.translate(_ESCAPES)}{tail}"


def replay_data(frames: Sequence[Frame]) -> dict[str, Any]:
    """The data of the page.

    `start` and `finished`: the pieces of the first and the last frame, None for a mask. `calls`: the `changes` of each
    network call. `hidden`: the number of positions after the end of the text.
    """
    shown = shown_positions(frames)
    return {
        "start": frames[0].pieces[:shown],
        "finished": frames[-1].pieces[:shown],
        "calls": [changes(before, after, shown) for before, after in pairwise(frames)],
        "hidden": len(frames[-1].ids) - shown,
        "scale": CONFIDENCE_SCALE,
    }
