"""The order of unmasking: which network call wrote which position, and with what confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unmask.plots.style import CONFIDENCE_SCALE, GREY, PAPER, open_figure

if TYPE_CHECKING:
    from unmask.text_processor import Frame

PANEL = (3.6, 3.2)
COLUMNS = 3
LARGEST, SMALLEST = 26.0, 3.0
"""Areas of dots in square points, for the shortest and the longest canvas."""


class UnmaskedToken(NamedTuple):
    """A token written by network call `call` (from 1); not `kept` if it was masked again."""

    position: int
    call: int
    confidence: float
    kept: bool


@dataclass(frozen=True)
class UnmaskingOrder:
    """The tokens that a sampling run wrote, the given positions, and the numbers of calls and positions."""

    name: str
    written: list[UnmaskedToken]
    given: list[int]
    calls: int
    length: int

    @classmethod
    def of(cls, name: str, frames: Sequence[Frame]) -> UnmaskingOrder:
        last = frames[-1]
        written = [
            UnmaskedToken(position, after.call, after.confidence[position], last.order[position] == order)
            for before, after in pairwise(frames)
            for position, order in enumerate(after.order)
            if order == before.call
        ]
        given = [position for position, order in enumerate(last.order) if order < 0]
        return cls(name, written, given, last.call, len(last.ids))


def draw_orders(orders: Sequence[UnmaskingOrder], path: Path) -> None:
    """Draw runs side by side: positions to the right, calls upwards, coloured by confidence."""
    from matplotlib import cm, colors

    lines = -(-len(orders) // COLUMNS)
    columns = -(-len(orders) // lines)
    shades = colors.LinearSegmentedColormap.from_list("confidence", CONFIDENCE_SCALE)
    with open_figure(path, (PANEL[0] * columns + 0.8, PANEL[1] * lines)) as figure:
        panels = figure.subplots(lines, columns, squeeze=False)
        for panel, order in zip(panels.flat, orders, strict=False):
            _draw_order(panel, order, shades)
        for panel in panels.flat[len(orders) :]:
            panel.set_visible(False)
        for panel in panels[:, 0]:
            panel.set_ylabel("network call")
        for panel in panels.flat[max(0, len(orders) - columns) : len(orders)]:
            panel.set_xlabel("position")
        scale = cm.ScalarMappable(colors.Normalize(0, 1), shades)
        bar = figure.colorbar(scale, ax=panels, ticks=[0, 0.5, 1], aspect=30, pad=0.02, label="confidence")
        bar.ax.set_yticklabels(["0", "0.5", "1"])
        bar.outline.set_visible(False)
        figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04)


def _draw_order(panel: Any, order: UnmaskingOrder, shades: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    area = min(LARGEST, max(SMALLEST, 1600 / max(order.length, order.calls)))
    kept = [token for token in order.written if token.kept]
    remasked = [token for token in order.written if not token.kept]
    for tokens, face in ((remasked, PAPER), (kept, None)):
        colours = [shades(token.confidence) for token in tokens]
        x, y = [token.position for token in tokens], [token.call for token in tokens]
        panel.scatter(x, y, s=area, color=face or colours, edgecolors=colours, linewidths=0.6, zorder=3, clip_on=False)
    for position in order.given:
        panel.axvspan(position - 0.5, position + 0.5, color="#eef0f3", linewidth=0)
    notes = [f"{order.calls} calls"]
    notes += ["rings: masked again"] if remasked else []
    notes += ["grey: given"] if order.given else []
    panel.set_title(order.name)
    panel.set_title(", ".join(notes), loc="right", fontsize=6.5, color=GREY)
    panel.set(xlim=(-1, order.length), ylim=(0, order.calls + 1))
    ticks = MaxNLocator(7, integer=True, steps=(1, 2, 5, 10)).tick_values(0, order.calls)
    panel.set_yticks(sorted({max(1, int(tick)) for tick in ticks if tick <= order.calls}))
    panel.xaxis.get_major_locator().set_params(integer=True)
