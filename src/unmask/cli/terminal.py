"""Show a canvas on the terminal while it is unmasked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from unmask.cli.common import console as standard_output
from unmask.plots.style import confidence_colour, to_hex

if TYPE_CHECKING:
    from unmask.text_processor import Frame

SECONDS = 5.0
"""Minimum duration of the display, if no pause is longer than `LONGEST_PAUSE`."""
LONGEST_PAUSE = 0.25
REFRESH = 0.05
MASK = "▄"  # half a line high, which keeps the lines of a masked canvas apart
WIDEST_MASK = 4


def watch(
    frames: Iterable[Frame],
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Frame]:
    """Show frames as they arrive, slowly enough to follow, and leave the finished canvas. Returns all frames.

    Only the finished text is printed if the console is not a terminal, or a dumb one.
    """
    console = console or standard_output
    seen: list[Frame] = []
    if not console.is_terminal or console.is_dumb_terminal:
        seen = list(frames)
        print(seen[-1].text)
        return seen
    start = last_drawn = clock()
    with Live(console=console, auto_refresh=False) as live:
        for frame in frames:
            seen.append(frame)
            due = start + frame.call * min(LONGEST_PAUSE, SECONDS / max(1, frame.calls))
            if (wait := due - clock()) > 0:
                sleep(wait)
            now = clock()
            if frame.call in (0, frame.calls) or now - last_drawn >= REFRESH:
                live.update(Group(_status(frame, now - start), Text(), canvas(frame)), refresh=True)
                last_drawn = now
    return seen


def canvas(frame: Frame) -> Text:
    """Render a frame: masks as dim blocks, tokens in the colour of their confidence, new tokens in bold."""
    widths = [len(piece) for piece in frame.pieces if piece is not None]
    width = min(WIDEST_MASK, round(sum(widths) / len(widths))) if widths else WIDEST_MASK
    mask = MASK if width <= 1 else f" {MASK * (width - 1)}"
    text = Text()
    for piece, order, confidence in zip(frame.pieces[: frame.end], frame.order, frame.confidence, strict=False):
        if piece is None:
            text.append(mask, style="dim")
        elif order < 0:
            text.append(piece)
        else:
            new = "bold " if order == frame.call - 1 and frame.call < frame.calls else ""
            text.append(piece, style=new + to_hex(confidence_colour(confidence)))
    return text


def _status(frame: Frame, seconds: float) -> Text:
    text = Text()
    text.append(f"call {frame.call} of {frame.calls} · {seconds:.1f} s · confidence ", style="dim")
    for tenth in range(0, 11, 2):
        text.append("■", style=to_hex(confidence_colour(tenth / 10)))
    return text.append(" 0 to 1", style="dim")
