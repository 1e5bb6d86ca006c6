"""The order of unmasking: one dot for every token that was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.frames import story_frames
from unmask.plots.order import UnmaskedToken, UnmaskingOrder, draw_orders


def remasked_frames():
    """Token 2 is written by the first call, masked by the second and written again by the third."""
    frames = story_frames()
    frames[1] = replace(frames[1], order=[-1, -1, 0, 0, 0, -1, -1], confidence=[1, 1, 0.1, 0.25, 0.5, 0, 0])
    return frames


def test_orders_are_read_from_frames():
    order = UnmaskingOrder.of("uniform", story_frames())
    assert order.given == [0, 1]
    assert (order.calls, order.length) == (3, 7)
    assert sorted(order.written) == [
        (2, 3, 0.9, True), (3, 1, 0.25, True), (4, 1, 0.5, True), (5, 2, 0.75, True), (6, 3, 0.0, True),
    ]  # fmt: skip
    remasked = UnmaskingOrder.of("remdm", remasked_frames())
    assert [token for token in remasked.written if token.position == 2] == [
        UnmaskedToken(2, 1, 0.1, kept=False),
        UnmaskedToken(2, 3, 0.9, kept=True),
    ]


def test_dots_are_at_position_and_call(figures):
    orders = [UnmaskingOrder.of("remdm", remasked_frames()), UnmaskingOrder.of("uniform", story_frames())]
    draw_orders(orders, Path("unused.png"))
    first, second = [axes for axes in figures[0].axes if axes.get_title(loc="left")]
    rings, dots = first.collections[:2]
    assert rings.get_offsets().tolist() == [[2, 1]]
    assert sorted(dots.get_offsets().tolist()) == [[2, 3], [3, 1], [4, 1], [5, 2], [6, 3]]
    assert second.get_title(loc="right") == "3 calls, grey: given"
    assert first.get_title(loc="right") == "3 calls, rings: masked again, grey: given"
    shades = dict(zip(map(tuple, dots.get_offsets().tolist()), dots.get_facecolors(), strict=True))
    assert shades[(6, 3)] == pytest.approx([200 / 255, 56 / 255, 90 / 255, 1], abs=0.01), "confidence 0 is red"
