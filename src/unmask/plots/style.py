"""How every figure looks and how it is written: quiet axes, colours that all eyes can tell apart, whole files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.io import atomic_bytes, check_output_file

INK, GREY, PAPER = "#1b1f24", "#8a929b", "#ffffff"
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
"""Paul Tol's bright scheme, told apart by all kinds of colour vision."""
SUFFIXES = (".png", ".svg", ".pdf")
DPI = 200

_QUIET: dict[str, Any] = {
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


def check_picture(path: Path) -> None:
    """Refuse a file name that says no known kind of picture, and a place where none can be written."""
    if path.suffix.lower() not in SUFFIXES:
        raise UnmaskError(f"'{path}' ends in no kind of picture; give it one of the endings {', '.join(SUFFIXES)}.")
    check_output_file(path)


@contextmanager
def drawing() -> Iterator[Any]:
    """Matplotlib's pyplot in the style of this project, without a screen."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("Agg")

    with plt.style.context(["default", _QUIET]):
        yield plt


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure whole or not at all, the same bytes for the same figure; the ending says which kind."""
    check_picture(path)
    kind = path.suffix.lower()[1:]
    dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=dated.get(kind))
    atomic_bytes(path, buffer.getvalue())


def colour(number: int) -> str:
    """The colour of the n-th thing of a figure."""
    return COLOURS[number % len(COLOURS)]


def dashes(number: int) -> str:
    """Its line: whole while colours last, then dashed and dotted."""
    return ("-", "--", ":", "-.")[number // len(COLOURS) % 4]


def legend(figure: Any, loc: str, columns: int, handles: Sequence[Any], labels: Sequence[str], **look: Any) -> None:
    """A legend outside the panels, in at most so many columns, and no more than the figure has room for."""
    for fewer in range(min(columns, len(labels)), 0, -1):
        shown = figure.legend(handles, labels, loc=loc, ncols=fewer, **look)
        if shown.get_window_extent().width <= 0.98 * figure.bbox.width or fewer == 1:
            return
        shown.remove()
