"""What is drawn of a walk is what happened in it, and no text can break out of a page."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from tests.walks import story, walk_of
from unmask.errors import UnmaskError
from unmask.plots.colours import SCALE, code, of_confidence, rgb
from unmask.plots.painter import (
    EMPTY,
    FIRST,
    FRESH,
    LAST,
    PAPER,
    RETURN,
    WRITTEN,
    Painter,
    changes,
    chip_colour,
    durations,
    lay_out,
    shown_positions,
    spread,
    with_few_colours,
    write_gif,
    write_png,
)
from unmask.plots.replay import check_pictures, draw, page, replay, script_safe, write_html

NASTY = ["</script><script>alert(1)</script>", '"quo\'tes"', "<!--", "&lt;&amp;", "\u2028\u2029\\", "{{replay}}", "\n"]


class Scripts(HTMLParser):
    """The text of every script element, as a browser would find it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self._open: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "script":
            self.found.append((dict(attributes), ""))
            self._open = dict(attributes)

    def handle_data(self, data):
        if self._open is not None:
            attributes, before = self.found[-1]
            self.found[-1] = (attributes, before + data)

    def handle_endtag(self, tag):
        if tag == "script":
            self._open = None


def test_confidence_runs_along_the_scale():
    assert code(of_confidence(0.0)) == SCALE[0]
    assert code(of_confidence(1 / 3)) == SCALE[1]
    assert code(of_confidence(1.0)) == SCALE[-1]
    assert of_confidence(-1.0) == of_confidence(0.0)
    assert of_confidence(1 / 6) == tuple((a + b) // 2 for a, b in zip(rgb(SCALE[0]), rgb(SCALE[1]), strict=True))


def test_changes_are_what_a_call_wrote():
    frames = story()
    assert changes(frames[0], frames[1], 7) == [(3, " time", 0, 0.25), (4, " there", 0, 0.5)]
    assert changes(frames[0], frames[1], 4) == [(3, " time", 0, 0.25)]
    assert changes(frames[1], frames[1], 7) == []


def test_a_token_that_is_masked_or_written_again_is_a_change():
    before = story()[2]
    again = replace(before, order=[-1, -1, -1, 2, 0, 1, -1], confidence=[1.0, 1.0, 0.0, 0.6, 0.5, 0.75, 0.0])
    assert changes(before, again, 7) == [(3, " time", 2, 0.6)]
    masked = replace(before, pieces=[*before.pieces[:3], None, *before.pieces[4:]], order=[-1, -1, -1, -1, 0, 1, -1])
    assert [(change.position, change.piece) for change in changes(before, masked, 7)] == [(3, None)]


def test_the_page_knows_every_canvas(mdlm):
    """Changes applied one after the other give the pieces, orders and confidences of every frame of a real walk."""
    frames = list(mdlm.stream("héllo €", length=40, steps=9, seed=2))
    data = json.loads(script_safe(replay(frames)))
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


def test_what_lies_behind_the_end_is_counted_and_not_shown():
    frames = walk_of(["a", "b", "\n", "x", "y"], [0, 1, 1, 0, 2], [0.5] * 5, end=2)
    assert shown_positions(frames) == 3
    data = replay(frames)
    assert data["hidden"] == 2
    assert data["finished"] == ["a", "b", "\n"]
    assert [len(call) for call in data["calls"]] == [1, 2, 0]


def test_no_text_breaks_out_of_the_page():
    frames = walk_of(NASTY, range(len(NASTY)), [0.5] * len(NASTY))
    scripts = Scripts(page(frames, caption="<b>bold</b> {{replay}}"))
    (attributes, data), (_, program) = scripts.found
    assert attributes == {"type": "application/json", "id": "replay"}
    assert json.loads(data)["finished"] == NASTY
    assert "alert" not in program
    assert not set("<>&\u2028\u2029") & set(data)
    assert "&lt;b&gt;bold&lt;/b&gt; {{replay}}" in page(frames, caption="<b>bold</b> {{replay}}")


def test_the_page_stands_alone():
    text = page(story())
    assert "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "{{" not in text


@pytest.mark.parametrize("count", [1, 2, 6, 100])
def test_spread_keeps_the_ends(count):
    frames = walk_of(["x"] * 20, range(20), [0.5] * 20)
    calls = [frame.call for frame in spread(frames, count)]
    assert len(calls) == min(count, 21)
    assert calls == sorted(set(calls))
    assert calls[-1] == 20
    assert count == 1 or calls[0] == 0


def test_layout_breaks_between_words_and_keeps_every_letter():
    pieces = ["The", " little", " d", "og", " ran\n", "\n", " far", "awayawayaway", " ", "\t", "é"]
    chips = lay_out(pieces, 12)
    for token, piece in enumerate(pieces):
        shown = "".join(chip.text for chip in chips if chip.token == token)
        assert shown.replace(RETURN, "\n").replace("⇥", "\t") == (piece.lstrip(" ") or piece)
    assert all(chip.column + len(chip.text.strip(" " + RETURN)) <= 12 for chip in chips)
    lines = [" ".join(chip.text for chip in chips if chip.line == line) for line in range(chips[-1].line + 1)]
    assert lines[:4] == ["The little", f"d og ran{RETURN}", RETURN, "far awayaway"]


def test_a_line_is_filled_to_its_end():
    assert [chip.line for chip in lay_out(["ab", " cd", " ", "ef"], 5)] == [0, 0, 0, 1]
    assert [chip.line for chip in lay_out(["ab", " cde"], 5)] == [0, 1]


def test_tokens_do_not_share_cells():
    taken = [
        (chip.line, chip.column + i)
        for chip in lay_out(["ab", " c", "de", "f g"] * 9, 10)
        for i in range(len(chip.text))
    ]
    assert len(taken) == len(set(taken))


def test_colours_behind_tokens_say_what_they_are():
    first, second, last = (story()[i] for i in (0, 2, 3))
    assert chip_colour(first, 0) is None
    assert chip_colour(first, 3) == EMPTY
    old, fresh = chip_colour(second, 4), chip_colour(second, 5)
    finished = chip_colour(last, 2)
    for colour, confidence, cover in ((old, 0.5, WRITTEN), (fresh, 0.75, FRESH), (finished, 0.9, WRITTEN)):
        full = of_confidence(confidence)
        assert colour == tuple(round(a + cover * (b - a)) for a, b in zip(PAPER, full, strict=True))


def test_a_token_that_was_just_written_stands_out():
    frame = walk_of(["a", "b", "c"], [0, 1, 2], [0.5] * 3)[2]
    old, fresh = (sum(abs(a - b) for a, b in zip(PAPER, chip_colour(frame, token), strict=True)) for token in range(2))
    assert fresh > 2 * old > 0


def test_a_walk_that_ended_early_is_drawn_as_one_of_so_many_calls(tmp_path):
    """Until its last frame nobody knows how many there will be, and a bar that fills must be full at the end."""
    frames = story()
    early = [*(replace(frame, calls=40) for frame in frames[:-1]), frames[-1]]
    for kind in ("gif", "png"):
        known, found = tmp_path / f"known.{kind}", tmp_path / f"found.{kind}"
        draw(frames, [known])
        draw(early, [found])
        assert found.read_bytes() == known.read_bytes()


def colours_of(image) -> set[tuple[int, int, int]]:
    return {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}


def test_a_painted_frame_has_the_colours_of_its_tokens():
    frames = story()
    painter = Painter(frames, 16)
    images = [painter.paint(frame) for frame in frames]
    assert {image.size for image in images} == {painter.size}
    for frame, image in zip(frames, images, strict=True):
        wanted = {colour for token in range(7) if (colour := chip_colour(frame, token)) is not None}
        assert wanted <= colours_of(image)
    assert chip_colour(frames[-1], 3) not in colours_of(images[0])


def test_few_colours_stay_near_the_true_ones():
    image = Painter(story(), 16).paint(story()[2])
    far = np.abs(np.asarray(image, int) - np.asarray(with_few_colours(image).convert("RGB"), int))
    assert far.mean() < 1.5
    assert far.max() < 60


def test_the_animation_shows_every_call_and_rests_at_the_end(tmp_path):
    path = tmp_path / "walk.gif"
    frames = story()
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


def test_an_animation_for_a_readme_is_small(tmp_path):
    words = " ".join(f"word{i} and" for i in range(48)).split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    order = np.random.default_rng(0).permutation(96)
    write_gif(walk_of(pieces, order.tolist(), np.linspace(0, 1, 96).tolist()), tmp_path / "a.gif")
    assert (tmp_path / "a.gif").stat().st_size < 300_000
    assert sum(durations(60)) < 12_000


def test_a_still_has_a_panel_for_each_moment(tmp_path):
    frames = walk_of([" word"] * 12, range(12), [0.5] * 12)
    width, height = Painter(frames, 22).size
    for panels, shape in ((1, (1, 1)), (2, (2, 1)), (6, (2, 3))):
        write_png(frames, tmp_path / "a.png", panels)
        with Image.open(tmp_path / "a.png") as image:
            assert image.size == (shape[0] * width, shape[1] * height)


def test_pictures_are_written_whole(tmp_path, monkeypatch):
    for path in (tmp_path / "a.html", tmp_path / "a.gif", tmp_path / "a.png"):
        path.write_bytes(b"before")
        with monkeypatch.context() as patch:
            patch.setattr("unmask.io.os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
            with pytest.raises(UnmaskError, match=f"'{path}' could not be written .No space"):
                draw(story(), [path])
        assert path.read_bytes() == b"before"
        draw(story(), [path])
        assert path.read_bytes() != b"before"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.gif", "a.html", "a.png"]


def test_places_are_checked(tmp_path):
    assert check_pictures(html=tmp_path / "a.HTML", gif=None) == [tmp_path / "a.HTML"]
    with pytest.raises(UnmaskError, match=r"does not end in \.gif"):
        check_pictures(gif=tmp_path / "a.png")
    with pytest.raises(UnmaskError, match=r"folder '.*nowhere' does not exist; create it first"):
        check_pictures(html=tmp_path / "nowhere" / "a.html")
    (tmp_path / "b.png").mkdir()
    with pytest.raises(UnmaskError, match="is a folder"):
        check_pictures(png=tmp_path / "b.png")


def test_the_page_is_the_file(tmp_path):
    write_html(story(), tmp_path / "a.html", "a caption")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == page(story(), "a caption")
