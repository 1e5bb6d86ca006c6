"""Questions that every picture asks about the frames of one walk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from unmask.scribe import Frame


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
