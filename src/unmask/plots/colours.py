"""One colour for a confidence, the same in a terminal, a picture and a page; red to teal, told apart by all eyes."""

from __future__ import annotations

RGB = tuple[int, int, int]

SCALE = ("#c8385a", "#d9951a", "#42a01c", "#128c94")
"""Confidence 0, 1/3, 2/3 and 1. Middling light, so that they can be read on white and on black."""


def rgb(code: str) -> RGB:
    """The three bytes of `#rrggbb`."""
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


def code(colour: RGB) -> str:
    """`#rrggbb` of three bytes."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def blend(below: RGB, above: RGB, share: float) -> RGB:
    """`above` laid over `below`, covering this share of it."""
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(below, above, strict=True))
    return red, green, blue


def of_confidence(confidence: float) -> RGB:
    """The colour of a token that was written with this probability."""
    place = min(max(confidence, 0.0), 1.0) * (len(SCALE) - 1)
    left = min(int(place), len(SCALE) - 2)
    return blend(rgb(SCALE[left]), rgb(SCALE[left + 1]), place - left)
