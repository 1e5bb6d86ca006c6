"""Replays: the data of the page, escaping, and writing of all pictures."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.frames import make_frames, story_frames
from unmask.errors import UnmaskError
from unmask.plots.replay import check_pictures, make_page, replay_data, script_json, write_pictures

NASTY = ["</script><script>alert(1)</script>", '"quo\'tes"', "<!--", "&lt;&amp;", "\u2028\u2029\\", "{{replay}}", "\n"]


def test_the_changes_of_the_page_give_every_frame(mdlm):
    frames = list(mdlm.stream("héllo €", length=40, steps=9, seed=2))
    data = json.loads(script_json(replay_data(frames)))
    canvas = [[piece, -1, None] for piece in data["start"]]
    for frame, changed in zip(frames[1:], data["calls"], strict=True):
        for position, piece, order, confidence in changed:
            canvas[position] = [piece, order, confidence]
        assert [row[0] for row in canvas] == frame.pieces
        assert [row[1] for row in canvas] == frame.order
        written = [i for i, order in enumerate(frame.order) if order >= 0]
        assert np.allclose([canvas[i][2] for i in written], [frame.confidence[i] for i in written], atol=1e-4)
    assert data["finished"] == frames[-1].pieces
    assert data["hidden"] == 0


def test_positions_after_the_end_are_counted_and_not_shown():
    data = replay_data(make_frames(["a", "b", "\n", "x", "y"], [0, 1, 1, 0, 2], [0.5] * 5, end=2))
    assert data["hidden"] == 2
    assert data["finished"] == ["a", "b", "\n"]
    assert [len(call) for call in data["calls"]] == [1, 2, 0]


def test_texts_are_escaped_and_the_page_loads_nothing():
    frames = make_frames(NASTY, range(len(NASTY)), [0.5] * len(NASTY))
    page = make_page(frames, caption="<b>bold</b> {{replay}}")
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    (attributes, data), (_, program) = re.findall(r"<script([^>]*)>(.*?)</script>", page, flags=re.DOTALL)
    assert 'type="application/json"' in attributes
    assert json.loads(data)["finished"] == NASTY
    assert "alert" not in program
    assert not set("<>&\u2028\u2029") & set(data)
    assert "&lt;b&gt;bold&lt;/b&gt; {{replay}}" in page


def test_the_last_frame_gives_the_number_of_calls(tmp_path):
    """An adaptive sampler knows it only at the end, and the progress bar must be full there."""
    frames = story_frames()
    adaptive = [*(replace(frame, calls=40) for frame in frames[:-1]), frames[-1]]
    for suffix in ("gif", "png"):
        known, found = tmp_path / f"known.{suffix}", tmp_path / f"found.{suffix}"
        write_pictures(frames, [known])
        write_pictures(adaptive, [found])
        assert found.read_bytes() == known.read_bytes()


@pytest.mark.parametrize("suffix", ["html", "gif", "png"])
def test_pictures_are_written_atomically(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"before")
    with monkeypatch.context() as patch:
        patch.setattr("unmask.io.os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(UnmaskError, match="No space"):
            write_pictures(story_frames(), [path])
    assert path.read_bytes() == b"before"
    write_pictures(story_frames(), [path], "a caption")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    if suffix == "html":
        assert path.read_text(encoding="utf-8") == make_page(story_frames(), "a caption")
    else:
        assert path.read_bytes() != b"before"


def test_paths_are_checked(tmp_path):
    assert check_pictures(html=tmp_path / "a.HTML", gif=None) == [tmp_path / "a.HTML"]
    (tmp_path / "b.png").mkdir()
    for paths, words in (
        ({"gif": tmp_path / "a.png"}, r"--gif must name a file that ends in \.gif"),
        ({"html": tmp_path / "nowhere" / "a.html"}, r"folder '.*nowhere' does not exist; create it first"),
        ({"png": tmp_path / "b.png"}, "is a folder"),
    ):
        with pytest.raises(UnmaskError, match=words):
            check_pictures(**paths)
