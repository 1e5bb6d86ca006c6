"""PNG and GIF pictures: layout, colours and timing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.frames import make_frames, story_frames
from unmask.plots.painter import (
    EMPTY,
    FIRST,
    FRESH,
    LAST,
    NEWLINE,
    PAPER,
    WRITTEN,
    Painter,
    changes,
    chip_colour,
    durations,
    lay_out,
    quantize,
    select_frames,
    write_gif,
    write_png,
)
from unmask.plots.style import blend, confidence_colour


def test_changes_are_what_a_call_wrote_or_masked():
    frames = story_frames()
    assert changes(frames[0], frames[1], 7) == [(3, " time", 0, 0.25), (4, " there", 0, 0.5)]
    assert changes(frames[0], frames[1], 4) == [(3, " time", 0, 0.25)]
    assert changes(frames[1], frames[1], 7) == []
    before = frames[2]
    rewritten = replace(before, order=[-1, -1, -1, 2, 0, 1, -1], confidence=[1.0, 1.0, 0.0, 0.6, 0.5, 0.75, 0.0])
    assert changes(before, rewritten, 7) == [(3, " time", 2, 0.6)]
    masked = replace(before, pieces=[*before.pieces[:3], None, *before.pieces[4:]], order=[-1, -1, -1, -1, 0, 1, -1])
    assert [(change.position, change.piece) for change in changes(before, masked, 7)] == [(3, None)]


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
    assert all(chip.column + len(chip.text.strip(" " + NEWLINE)) <= 12 for chip in chips)
    lines = [" ".join(chip.text for chip in chips if chip.line == line) for line in range(chips[-1].line + 1)]
    assert lines[:4] == ["The little", f"d og ran{NEWLINE}", NEWLINE, "far awayaway"]
    assert [chip.line for chip in lay_out(["ab", " cd", " ", "ef"], 5)] == [0, 0, 0, 1]
    assert [chip.line for chip in lay_out(["ab", " cde"], 5)] == [0, 1]


def test_tokens_do_not_overlap():
    chips = lay_out(["ab", " c", "de", "f g"] * 9, 10)
    cells = [(chip.line, chip.column + i) for chip in chips for i in range(len(chip.text))]
    assert len(cells) == len(set(cells))


def test_the_colour_of_a_token_shows_its_state():
    first, second, last = (story_frames()[i] for i in (0, 2, 3))
    assert chip_colour(first, 0) is None
    assert chip_colour(first, 3) == EMPTY
    for frame, token, confidence, opacity in (
        (second, 4, 0.5, WRITTEN),
        (second, 5, 0.75, FRESH),
        (last, 2, 0.9, WRITTEN),
    ):
        assert chip_colour(frame, token) == blend(PAPER, confidence_colour(confidence), opacity)


def test_a_painted_frame_has_the_colours_of_its_tokens():
    frames = story_frames()
    painter = Painter(frames, 16)
    images = [painter.paint(frame) for frame in frames]
    colours = [{colour for _, colour in image.getcolors(1 << 24)} for image in images]
    assert {image.size for image in images} == {painter.size}
    for frame, found in zip(frames, colours, strict=True):
        assert {colour for token in range(7) if (colour := chip_colour(frame, token)) is not None} <= found
    assert chip_colour(frames[-1], 3) not in colours[0]
    difference = np.abs(np.asarray(images[2], int) - np.asarray(quantize(images[2]).convert("RGB"), int))
    assert difference.mean() < 1.5
    assert difference.max() < 60


def test_a_gif_shows_every_call_and_pauses_at_the_end(tmp_path):
    path, frames = tmp_path / "run.gif", story_frames()
    write_gif(frames, path)
    with Image.open(path) as animation:
        assert animation.n_frames == len(frames)
        assert animation.info["loop"] == 0
        shown = []
        for number in range(animation.n_frames):
            animation.seek(number)
            shown.append((animation.info["duration"], np.asarray(animation.convert("RGB"), int)))
    assert [time for time, _ in shown] == durations(len(frames))
    assert (shown[0][0], shown[-1][0]) == (FIRST, LAST)
    painter = Painter(frames, 16)
    for (_, image), frame in zip(shown, frames, strict=True):
        assert np.abs(image - np.asarray(painter.paint(frame), int)).mean() < 1.5


def test_a_gif_is_short_and_small(tmp_path):
    words = " ".join(f"word{i} and" for i in range(48)).split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    order = np.random.default_rng(0).permutation(96)
    write_gif(make_frames(pieces, order.tolist(), np.linspace(0, 1, 96).tolist()), tmp_path / "a.gif")
    assert (tmp_path / "a.gif").stat().st_size < 300_000
    assert sum(durations(60)) < 12_000


@pytest.mark.parametrize(("panels", "columns", "lines"), [(1, 1, 1), (2, 2, 1), (6, 2, 3)])
def test_a_png_has_its_panels_in_two_columns(tmp_path, panels, columns, lines):
    frames = make_frames([" word"] * 12, range(12), [0.5] * 12)
    width, height = Painter(frames, 22).size
    write_png(frames, tmp_path / "a.png", panels)
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (columns * width, lines * height)
