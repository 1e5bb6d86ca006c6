"""The order of a walk: which position was written in which call, and how sure the network was of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unmask.plots.colours import SCALE
from unmask.plots.style import GREY, PAPER, drawing, write_figure

if TYPE_CHECKING:
    from unmask.text_processor import Frame

PANEL = (3.6, 3.2)
ACROSS = 3
LARGEST, SMALLEST = 26.0, 3.0
"""Areas of dots, in square points, on the shortest and the longest canvas."""


class Written(NamedTuple):
    """A token that call number `call` (from 1) wrote; not `kept` where it was masked again."""

    position: int
    call: int
    confidence: float
    kept: bool


@dataclass(frozen=True)
class Walk:
    """A walk by its name: what was written, the positions that were given, how many calls and positions there are."""

    name: str
    written: list[Written]
    given: list[int]
    calls: int
    length: int

    @classmethod
    def of(cls, name: str, frames: Sequence[Frame]) -> Walk:
        """What the frames of one walk tell."""
        last = frames[-1]
        written = [
            Written(position, after.call, after.confidence[position], last.order[position] == order)
            for before, after in pairwise(frames)
            for position, order in enumerate(after.order)
            if order == before.call
        ]
        given = [position for position, order in enumerate(last.order) if order < 0]
        return cls(name, written, given, last.call, len(last.ids))


def draw_orders(walks: Sequence[Walk], path: Path) -> None:
    """Draw walks side by side: position to the right, calls upwards, colour by confidence."""
    with drawing() as plt:
        rows = -(-len(walks) // ACROSS)
        columns = -(-len(walks) // rows)
        size = (PANEL[0] * columns + 0.8, PANEL[1] * rows)
        figure = plt.figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False)
        shades = _shades()
        for panel, walk in zip(panels.flat, walks, strict=False):
            _draw(panel, walk, shades)
        for panel in panels.flat[len(walks) :]:
            panel.set_visible(False)
        for panel in panels[:, 0]:
            panel.set_ylabel("network call")
        for panel in panels.flat[max(0, len(walks) - columns) : len(walks)]:
            panel.set_xlabel("position")
        _draw_scale(figure, panels, shades)
        figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04)
        write_figure(figure, path)
        plt.close(figure)


def _draw(panel: Any, walk: Walk, shades: Any) -> None:
    area = min(LARGEST, max(SMALLEST, 1600 / max(walk.length, walk.calls)))
    kept = [one for one in walk.written if one.kept]
    gone = [one for one in walk.written if not one.kept]
    for some, faces in ((gone, PAPER), (kept, None)):
        colours = [shades(one.confidence) for one in some]
        places, calls = [one.position for one in some], [one.call for one in some]
        panel.scatter(
            places, calls, s=area, color=faces or colours, edgecolors=colours, linewidths=0.6, zorder=3, clip_on=False
        )
    for position in walk.given:
        panel.axvspan(position - 0.5, position + 0.5, color="#eef0f3", linewidth=0)
    panel.set_title(walk.name)
    panel.set_title(_note(walk, len(gone)), loc="right", fontsize=6.5, color=GREY)
    panel.set_xlim(-1, walk.length)
    panel.set_ylim(0, walk.calls + 1)
    panel.set_yticks(_ticks(walk.calls))
    panel.xaxis.get_major_locator().set_params(integer=True)


def _ticks(calls: int) -> list[int]:
    """The first call and round numbers after it."""
    from matplotlib.ticker import MaxNLocator

    return sorted(
        {
            max(1, int(tick))
            for tick in MaxNLocator(7, integer=True, steps=(1, 2, 5, 10)).tick_values(0, calls)
            if tick <= calls
        }
    )


def _note(walk: Walk, gone: int) -> str:
    """What else there is to see."""
    notes = [f"{walk.calls} calls"]
    notes += ["rings: masked again"] if gone else []
    notes += ["grey: given"] if walk.given else []
    return ", ".join(notes)


def _shades() -> Any:
    from matplotlib import colors

    return colors.LinearSegmentedColormap.from_list("confidence", SCALE)


def _draw_scale(figure: Any, panels: Any, shades: Any) -> None:
    from matplotlib import cm, colors

    scale = cm.ScalarMappable(colors.Normalize(0, 1), shades)
    bar = figure.colorbar(scale, ax=panels, ticks=[0, 0.5, 1], aspect=30, pad=0.02)
    bar.ax.set_yticklabels(["0", "0.5", "1"])
    bar.set_label("confidence")
    bar.outline.set_visible(False)
