"""The order of a walk as a picture: every token that was written is a dot where it belongs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.walks import story
from unmask.plots import order
from unmask.plots.order import Walk, Written, draw_orders


def remasked():
    """A walk whose second token is masked again by the second call and written by the third."""
    frames = story()
    frames[1] = replace(frames[1], order=[-1, -1, 0, 0, 0, -1, -1], confidence=[1, 1, 0.1, 0.25, 0.5, 0, 0])
    return frames


def test_walks_are_read_from_their_frames():
    walk = Walk.of("uniform", story())
    assert walk.given == [0, 1]
    assert (walk.calls, walk.length) == (3, 7)
    assert sorted(walk.written) == [
        Written(2, 3, 0.9, True),
        Written(3, 1, 0.25, True),
        Written(4, 1, 0.5, True),
        Written(5, 2, 0.75, True),
        Written(6, 3, 0.0, True),
    ]


def test_what_is_masked_again_is_told_apart():
    walk = Walk.of("remdm", remasked())
    assert [one for one in walk.written if one.position == 2] == [Written(2, 1, 0.1, False), Written(2, 3, 0.9, True)]


def test_dots_stand_where_they_were_written(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(order, "write_figure", lambda figure, path: kept.append(figure))
    draw_orders([Walk.of("remdm", remasked()), Walk.of("uniform", story())], tmp_path / "o.png")
    first, second = [axes for axes in kept[0].axes if axes.get_title(loc="left")]
    rings, dots = first.collections[:2]
    assert rings.get_offsets().tolist() == [[2, 1]]
    assert sorted(dots.get_offsets().tolist()) == [[2, 3], [3, 1], [4, 1], [5, 2], [6, 3]]
    assert second.get_title(loc="right") == "3 calls, grey: given"
    assert first.get_title(loc="right") == "3 calls, rings: masked again, grey: given"
    shades = dict(zip(map(tuple, dots.get_offsets().tolist()), dots.get_facecolors(), strict=True))
    assert shades[(6, 3)] == pytest.approx([200 / 255, 56 / 255, 90 / 255, 1], abs=0.01), "confidence 0 is red"


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_written(tmp_path, count, suffix):
    path = tmp_path / f"order{suffix}"
    draw_orders([Walk.of("one", story())] * count, path)
    assert path.stat().st_size > 5000
