"""The style of every figure: colours, quiet axes, and atomic writing."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError
from unmask.io import atomic_bytes, check_output_file

if TYPE_CHECKING:
    from unmask.evaluation.statistics import Estimate

RGB = tuple[int, int, int]

INK, GREY, PAPER = "#1b1f24", "#8a929b", "#ffffff"
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
"""Paul Tol's bright scheme, which is safe for all kinds of colour vision."""
CONFIDENCE_SCALE = ("#c8385a", "#d9951a", "#42a01c", "#128c94")
"""Colours of confidence 0, 1/3, 2/3 and 1, readable on white and on black."""
SUFFIXES = (".png", ".svg", ".pdf")
DPI = 200

_STYLE: dict[str, Any] = {
    "font.size": 8,
    "text.color": INK,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "axes.labelsize": 8,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e6e9ed",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "lines.solid_capstyle": "round",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.4,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.hashsalt": "unmask",
}


def rgb(code: str) -> RGB:
    """The bytes of ``#rrggbb``."""
    return int(code[1:3], 16), int(code[3:5], 16), int(code[5:7], 16)


def to_hex(colour: RGB) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def blend(below: RGB, above: RGB, opacity: float) -> RGB:
    """`above` painted over `below`."""
    red, green, blue = (round(a + opacity * (b - a)) for a, b in zip(below, above, strict=True))
    return red, green, blue


def confidence_colour(confidence: float) -> RGB:
    """The colour of a token predicted with this probability, the same in terminals, pictures and pages."""
    place = min(max(confidence, 0.0), 1.0) * (len(CONFIDENCE_SCALE) - 1)
    left = min(int(place), len(CONFIDENCE_SCALE) - 2)
    return blend(rgb(CONFIDENCE_SCALE[left]), rgb(CONFIDENCE_SCALE[left + 1]), place - left)


def check_picture(path: Path) -> None:
    """Raise `UnmaskError` unless the suffix is one of `SUFFIXES` and the file can be written."""
    if path.suffix.lower() not in SUFFIXES:
        raise UnmaskError(f"'{path}' must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}.")
    check_output_file(path)


@contextmanager
def open_figure(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """A Matplotlib figure in the style of this package, written to `path` at the end of the block."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")
    with plt.style.context(["default", _STYLE]):
        figure = plt.figure(figsize=size, layout="constrained")
        yield figure
        write_figure(figure, path)
        plt.close(figure)


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure atomically in the format of the suffix; equal figures give equal bytes."""
    check_picture(path)
    kind = path.suffix.lower()[1:]
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=undated.get(kind))
    atomic_bytes(path, buffer.getvalue())


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def dashes(number: int) -> str:
    """The line style of the n-th series, which changes when the colours repeat."""
    return ("-", "--", ":", "-.")[number // len(COLOURS) % 4]


def plain_log_axis(axis: Any, base: float, **options: Any) -> None:
    """Plain numbers on a logarithmic axis: powers of two, or 1, 2, 5, 10 ..."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base, **{"subs": (1.0,) if base == 2 else (1.0, 2.0, 5.0), **options}))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def error_bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    """[2, n] the lengths of the bars below and above each value; 0 if the interval is unknown."""
    below = [0.0 if one.low is None else max(0.0, one.value - one.low) for one in estimates]
    above = [0.0 if one.high is None else max(0.0, one.high - one.value) for one in estimates]
    return [below, above]


def legend(figure: Any, loc: str, columns: int, handles: Sequence[Any], labels: Sequence[str], **style: Any) -> None:
    """A legend of unique labels outside the panels, with at most this many columns, no wider than the figure."""
    unique = dict(zip(labels, handles, strict=True))
    for count in range(min(columns, len(unique)), 0, -1):
        drawn = figure.legend(list(unique.values()), list(unique), loc=loc, ncols=count, **style)
        if drawn.get_window_extent().width <= 0.98 * figure.bbox.width or count == 1:
            return
        drawn.remove()
