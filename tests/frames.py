"""Frames of sampling runs with known pieces, orders and confidences."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.text_processor import GLYPH, Frame


def make_frames(pieces: Sequence[str], order: Sequence[int], confidence: Sequence[float], end: int | None = None):
    """Frames of a run in which call `order[i]` (-1: given) writes `pieces[i]`; the text ends before `end`."""
    calls = max(order) + 1
    end = len(pieces) if end is None else end
    frames = []
    for call in range(calls + 1):
        there = [when < call for when in order]
        shown = [piece if known else None for piece, known in zip(pieces, there, strict=True)]
        frames.append(
            Frame(
                text="".join(GLYPH if piece is None else piece for piece in shown[:end]),
                ids=[position if known else 999 for position, known in enumerate(there)],
                order=[when if known else -1 for when, known in zip(order, there, strict=True)],
                confidence=[
                    1.0 if when < 0 else sure if known else 0.0
                    for when, sure, known in zip(order, confidence, there, strict=True)
                ],
                call=call,
                calls=calls,
                pieces=shown,
                end=end,
            )
        )
    return frames


def story_frames() -> list[Frame]:
    """A prompt of two tokens, then five tokens in three calls."""
    pieces = ["Once", " upon", " a", " time", " there", " was", "."]
    return make_frames(pieces, [-1, -1, 2, 0, 0, 1, 2], [1.0, 1.0, 0.9, 0.25, 0.5, 0.75, 0.0])
