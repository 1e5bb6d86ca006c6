"""Pictures of a canvas being unmasked show what happened, and no text breaks out of a page."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.frames import make_frames, story_frames
from unmask.errors import UnmaskError
from unmask.plots.replay import (
    EMPTY,
    FIRST,
    FRESH,
    GIF_FONT_SIZE,
    LAST,
    NEWLINE,
    PAPER,
    PNG_FONT_SIZE,
    WRITTEN,
    Painter,
    changes,
    check_pictures,
    chip_colour,
    durations,
    lay_out,
    make_page,
    quantize,
    replay_data,
    select_frames,
    write_gif,
    write_pictures,
    write_png,
)
from unmask.plots.style import blend, confidence_colour

NASTY = ["</script><script>alert(1)</script>", '"quo\'tes"', "<!--", "&lt;&amp;", "\u2028\u2029\\", "{{replay}}", "\n"]


def test_the_changes_of_the_page_give_every_frame(mdlm):
    frames = list(mdlm.stream("héllo €", length=40, steps=9, seed=2))
    data = json.loads(json.dumps(replay_data(frames)))
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


def test_changes_are_what_a_call_wrote_or_masked():
    frames = story_frames()
    assert changes(frames[0], frames[1], 7) == [(3, " time", 0, 0.25), (4, " there", 0, 0.5)]
    assert changes(frames[0], frames[1], 4) == [(3, " time", 0, 0.25)]
    assert changes(frames[1], frames[1], 7) == []
    before = frames[2]
    rewritten = replace(before, order=[-1, -1, -1, 2, 0, 1, -1], confidence=[1.0, 1.0, 0.0, 0.6, 0.5, 0.75, 0.0])
    assert changes(before, rewritten, 7) == [(3, " time", 2, 0.6)]
    masked = replace(before, pieces=[*before.pieces[:3], None, *before.pieces[4:]], order=[-1, -1, -1, -1, 0, 1, -1])
    assert [change[:2] for change in changes(before, masked, 7)] == [(3, None)]


@pytest.mark.parametrize("count", [1, 2, 6, 100])
def test_selected_frames_include_both_ends(count):
    frames = make_frames(["x"] * 20, range(20), [0.5] * 20)
    calls = [frame.call for frame in select_frames(frames, count)]
    assert len(calls) == min(count, 21)
    assert calls == sorted(set(calls))
    assert calls[-1] == 20
    assert count == 1 or calls[0] == 0


def test_lines_break_between_words_and_keep_every_character():
    pieces = ["The", " little", " d", "og", " ran\n", "\n", " far", "awayawayaway", " ", "\t", "é"]
    chips = lay_out(pieces, 12)
    for token, piece in enumerate(pieces):
        shown = "".join(chip.text for chip in chips if chip.token == token)
        assert shown.replace(NEWLINE, "\n").replace("⇥", "\t") == (piece.lstrip(" ") or piece)
    cells = [(chip.line, chip.column + i) for chip in chips for i in range(len(chip.text))]
    assert len(cells) == len(set(cells)), "tokens do not overlap"
    assert all(chip.column + len(chip.text.strip(" " + NEWLINE)) <= 12 for chip in chips)
    lines = [" ".join(chip.text for chip in chips if chip.line == line) for line in range(chips[-1].line + 1)]
    assert lines[:4] == ["The little", f"d og ran{NEWLINE}", NEWLINE, "far awayaway"]
    assert [chip.line for chip in lay_out(["ab", " cd", " ", "ef"], 5)] == [0, 0, 0, 1]
    assert [chip.line for chip in lay_out(["ab", " cde"], 5)] == [0, 1]


def test_colours_show_masks_confidence_and_fresh_tokens():
    frames = story_frames()
    assert chip_colour(frames[0], 0) is None, "given"
    assert chip_colour(frames[0], 3) == EMPTY
    for call, token, confidence, opacity in (
        (2, 4, 0.5, WRITTEN),
        (2, 5, 0.75, FRESH),
        (3, 2, 0.9, WRITTEN),
    ):
        assert chip_colour(frames[call], token) == blend(PAPER, confidence_colour(confidence), opacity)
    painted = [Painter(frames, 16).paint(frame) for frame in frames]
    colours = [{colour for _, colour in image.getcolors(1 << 24)} for image in painted]
    for frame, found in zip(frames, colours, strict=True):
        assert {colour for token in range(7) if (colour := chip_colour(frame, token)) is not None} <= found
    assert chip_colour(frames[-1], 3) not in colours[0]
    difference = np.abs(np.asarray(painted[2], int) - np.asarray(quantize(painted[2]).convert("RGB"), int))
    assert difference.mean() < 1.5
    assert difference.max() < 60


def test_a_gif_shows_every_call_and_pauses_at_the_end(tmp_path):
    path, frames = tmp_path / "run.gif", story_frames()
    write_gif(frames, path)
    painted = Painter(frames, GIF_FONT_SIZE)
    with Image.open(path) as animation:
        assert (animation.n_frames, animation.info["loop"]) == (len(frames), 0)
        for number, (frame, time) in enumerate(zip(frames, durations(len(frames)), strict=True)):
            animation.seek(number)
            assert animation.info["duration"] == time
            difference = np.asarray(animation.convert("RGB"), int) - np.asarray(painted.paint(frame), int)
            assert np.abs(difference).mean() < 1.5
    assert (durations(4)[0], durations(4)[-1]) == (FIRST, LAST)


def test_a_gif_is_short_and_small(tmp_path):
    order = np.random.default_rng(0).permutation(96).tolist()
    pieces = [f" word{i}" if i % 2 else " and" for i in range(96)]
    write_gif(make_frames(pieces, order, np.linspace(0, 1, 96).tolist()), tmp_path / "a.gif")
    assert (tmp_path / "a.gif").stat().st_size < 300_000
    assert sum(durations(60)) < 12_000


@pytest.mark.parametrize(("panels", "columns", "lines"), [(1, 1, 1), (2, 2, 1), (6, 2, 3)])
def test_a_png_has_its_panels_in_two_columns(tmp_path, panels, columns, lines):
    frames = make_frames([" word"] * 12, range(12), [0.5] * 12)
    width, height = Painter(frames, PNG_FONT_SIZE).size
    write_png(frames, tmp_path / "a.png", panels)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (columns * width, lines * height)
