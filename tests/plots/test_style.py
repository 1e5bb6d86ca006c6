"""The style of figures: colours, legends that fit, and atomic writing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import pytest

from unmask.errors import UnmaskError
from unmask.evaluation.statistics import Estimate
from unmask.plots.style import (
    CONFIDENCE_SCALE,
    check_picture,
    confidence_colour,
    error_bars,
    legend,
    open_figure,
    rgb,
    to_hex,
)


def test_confidence_colours_follow_the_scale():
    assert to_hex(confidence_colour(0.0)) == CONFIDENCE_SCALE[0]
    assert to_hex(confidence_colour(1 / 3)) == CONFIDENCE_SCALE[1]
    assert to_hex(confidence_colour(1.0)) == CONFIDENCE_SCALE[-1]
    assert confidence_colour(-1.0) == confidence_colour(0.0)
    low, high = (rgb(code) for code in CONFIDENCE_SCALE[:2])
    assert confidence_colour(1 / 6) == tuple((a + b) // 2 for a, b in zip(low, high, strict=True))


def test_error_bars_are_distances_from_the_value():
    below, above = error_bars([Estimate(5.0, 4.0, 7.0), Estimate(1.0)])
    assert (below, above) == ([1.0, 0.0], [2.0, 0.0])


def test_an_unknown_suffix_is_refused():
    with pytest.raises(UnmaskError, match=r"'a.jpeg' must end in .png, .svg or .pdf"):
        check_picture(Path("a.jpeg"))


@pytest.mark.parametrize("place", ["matplotlib.figure.Figure.savefig", "os.fsync"])
def test_a_failed_write_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    path = tmp_path / "curves.png"
    path.write_bytes(b"old")

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(place, fail)
    with pytest.raises((OSError, UnmaskError), match="No space left"), open_figure(path, (2, 2)):
        pass
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["curves.png"]


def test_the_global_style_is_restored(figures):
    before = dict(matplotlib.rcParams)
    with open_figure(Path("a.png"), (2, 2)):
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("labels", "columns"), [(["a", "b", "c"], 3), ([f"a long name, number {n}" for n in range(6)], 3)]
)
def test_a_legend_has_as_many_columns_as_fit(figures, labels, columns):
    with open_figure(Path("a.png"), (6, 3)) as figure:
        lines = [figure.subplots().plot([0, 1])[0] for _ in labels]
        legend(figure, "outside lower center", 7, lines, labels, fontsize=7)
        figure.draw_without_rendering()
    (shown,) = figure.legends
    box = shown.get_window_extent()
    assert figure.bbox.contains(box.x0, box.y0)
    assert figure.bbox.contains(box.x1, box.y1)
    assert shown._ncols == columns
