"""A canvas that unmasks on the terminal, for every verb that has frames to show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from unmask.cli.common import console as standard_output
from unmask.plots.style import confidence_colour, to_hex

if TYPE_CHECKING:
    from unmask.text_processor import Frame

SECONDS = 5.0
"""What a walk takes to be followed, where the network is faster."""
LONGEST_PAUSE = 0.25
REFRESH = 0.05
MASK = "▄"
"""Half as high as a line, so that the lines of a masked canvas stay apart."""
WIDEST_MASK = 4


def watch(
    frames: Iterable[Frame],
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Frame]:
    """Show frames as they come, not faster than an eye can follow; the finished canvas stays. Returns all frames.

    Where the console is no terminal, or one on which nothing can be painted over, nothing is shown and nothing waited
    for.
    """
    console = console or standard_output
    if not can_show(console):
        return list(frames)
    seen: list[Frame] = []
    start = painted = clock()
    with Live(console=console, auto_refresh=False) as live:
        for frame in frames:
            seen.append(frame)
            due = start + frame.call * min(LONGEST_PAUSE, SECONDS / max(1, frame.calls))
            if (wait := due - clock()) > 0:
                sleep(wait)
            now = clock()
            if frame.call in (0, frame.calls) or now - painted >= REFRESH:
                live.update(picture(frame, now - start), refresh=True)
                painted = now
    return seen


def show(frames: Iterable[Frame]) -> list[Frame]:
    """Watch a walk on standard output, or print its text where that cannot be. Returns all frames."""
    seen = watch(frames)
    if not can_show(standard_output):
        typer.echo(seen[-1].text)
    return seen


def can_show(console: Console) -> bool:
    """Whether a canvas can be painted over an earlier one."""
    return console.is_terminal and not console.is_dumb_terminal


def picture(frame: Frame, seconds: float) -> Group:
    """How far it is, and below that the canvas, whose end a low terminal cuts off."""
    return Group(_status(frame, seconds), Text(), canvas(frame))


def canvas(frame: Frame) -> Text:
    """The text so far: dim blocks for masks, colour for the confidence of what was written, bold if just now."""
    mask = _mask(frame)
    text = Text()
    for piece, order, confidence in zip(frame.pieces[: frame.end], frame.order, frame.confidence, strict=False):
        if piece is None:
            text.append(mask, style="dim")
        elif order < 0:
            text.append(piece)
        else:
            fresh = "bold " if order == frame.call - 1 and frame.call < frame.calls else ""
            text.append(piece, style=fresh + to_hex(confidence_colour(confidence)))
    return text


def _mask(frame: Frame) -> str:
    """A block about as wide as the tokens around it, with the blank that most of them begin with."""
    known = [len(piece) for piece in frame.pieces if piece is not None]
    width = min(WIDEST_MASK, round(sum(known) / len(known))) if known else WIDEST_MASK
    return MASK if width <= 1 else f" {MASK * (width - 1)}"


def _status(frame: Frame, seconds: float) -> Text:
    text = Text()
    text.append(f"call {frame.call} of {frame.calls} · {seconds:.1f} s · confidence ", style="dim")
    for tenth in range(0, 11, 2):
        text.append("■", style=to_hex(confidence_colour(tenth / 10)))
    return text.append(" 0 to 1", style="dim")
