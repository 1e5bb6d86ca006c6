"""Pictures of a canvas being unmasked, drawn with Matplotlib (the extra `plot`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.generation import Frame

WIDTH = 58
PANELS = 6
INK, PAPER, EMPTY = "#1b1f24", "#ffffff", "#d7dce2"
SHORT = {"\n": "⏎", "\t": "⇥", "\r": "⏎"}

Cell = tuple[int, int, int, str]
"""Line, column, token index and one character."""


def draw_frames(frames: Sequence[Frame], tokenizer: Any, path: Path, panels: int = PANELS) -> None:
    """Draw up to `panels` canvases of one walk, evenly spread: empty cells are masks, colour is confidence.

    Every token keeps the place it has in the finished text, so the eye can follow it.
    """
    plt = _pyplot()
    shown = [frames[i] for i in sorted({round(k * (len(frames) - 1) / max(1, panels - 1)) for k in range(panels)})]
    cells = _layout([_clean(tokenizer.decode([token])) for token in frames[-1].ids])
    lines = cells[-1][0] + 1
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6.4 * columns, rows * (0.42 + 0.2 * lines)), squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for axis, frame in zip(axes.flat, shown, strict=False):
        _panel(axis, frame, cells, lines, plt.get_cmap("viridis"))
    figure.tight_layout()
    figure.savefig(path, dpi=130, facecolor=PAPER)
    plt.close(figure)


def _panel(axis: Any, frame: Frame, cells: list[Cell], lines: int, colours: Any) -> None:
    axis.set_xlim(0, WIDTH)
    axis.set_ylim(lines, -0.2)
    axis.set_title(f"call {frame.call} of {frame.calls}", fontsize=9, loc="left", color=INK)
    for line, column, token, character in cells:
        if frame.order[token] < 0 and frame.confidence[token] == 0.0:
            axis.add_patch(_block(column, line, EMPTY))
            continue
        if frame.order[token] >= 0:
            axis.add_patch(_block(column, line, colours(frame.confidence[token]), alpha=0.35))
        axis.text(
            column + 0.5, line + 0.5, character, family="monospace", fontsize=8, ha="center", va="center", color=INK
        )


def _block(column: int, line: int, colour: Any, alpha: float = 1.0) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column + 0.04, line + 0.08), 0.92, 0.84, color=colour, alpha=alpha, linewidth=0)


def _layout(pieces: list[str]) -> list[Cell]:
    """Set the tokens of the finished text line by line; a token without a visible character takes one cell."""
    cells, line, column = [], 0, 0
    for token, piece in enumerate(pieces):
        for character in piece or "·":
            if column >= WIDTH:
                line, column = line + 1, 0
            cells.append((line, column, token, character))
            column += 1
    return cells


def _clean(piece: str) -> str:
    return "".join(SHORT.get(character, character if character.isprintable() else "·") for character in piece)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UnmaskError("Drawing needs Matplotlib, which is not installed: pip install 'unmask[plot]'.") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
