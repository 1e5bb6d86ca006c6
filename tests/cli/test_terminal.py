"""The canvas on a terminal: what is shown, and how fast."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.frames import make_frames, story_frames
from unmask.cli.terminal import LONGEST_PAUSE, REFRESH, SECONDS, canvas, watch
from unmask.plots.style import confidence_colour, to_hex


class FakeTime:
    """A clock that is moved only by sleeping and by frames that take `seconds` each."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def watch(self, frames, console, seconds=0.0):
        def slow():
            for frame in frames:
                self.now += seconds if frame.call else 0.0
                yield frame

        return watch(slow(), console, lambda: self.now, self.sleep)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


def screen(width: int = 60, height: int = 20) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width, height=height)


def one_by_one(calls: int):
    return make_frames(["x"] * calls, range(calls), [0.5] * calls)


@pytest.mark.parametrize(
    ("calls", "seconds", "slept"),
    [(2, 0.0, 2 * LONGEST_PAUSE), (40, 0.0, SECONDS), (400, 0.0, SECONDS), (10, 0.3, 0.0)],
)
def test_a_fast_network_is_slowed_down_and_a_slow_one_is_not(time, calls, seconds, slept):
    frames = one_by_one(calls)
    assert time.watch(frames, screen(), seconds) == frames
    assert time.slept == pytest.approx(slept)


def test_a_low_terminal_shows_the_whole_text_at_the_end(time):
    console = screen(width=40, height=8)
    pieces = [f" word{i}" for i in range(100)]
    time.watch(make_frames(pieces, [i // 10 for i in range(100)], [0.5] * 100), console)
    drawn = console.file.getvalue().split("call ")[1:]
    assert [part.split(" ")[0] for part in drawn[:11]] == [str(call) for call in range(11)]
    assert "word99" not in "".join(drawn[:10])
    assert "word99" in drawn[-1]


def test_the_canvas_is_not_redrawn_for_every_call(time):
    console = screen()
    time.watch(one_by_one(1000), console)
    assert 50 < console.file.getvalue().count(" of 1000") <= SECONDS / REFRESH + 3
    assert "call 1000 of 1000" in console.file.getvalue()


@pytest.mark.parametrize("kind", ["pipe", "dumb terminal"])
def test_text_is_printed_where_nothing_can_be_redrawn(time, monkeypatch, capsys, kind):
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=io.StringIO()) if kind == "pipe" else screen()
    assert time.watch(story_frames(), console) == story_frames()
    assert (console.file.getvalue(), time.slept) == ("", 0.0)
    assert capsys.readouterr().out == f"{story_frames()[-1].text}\n"


def test_tokens_have_the_colour_of_their_confidence():
    text = canvas(story_frames()[2])
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert text.plain.startswith("Once upon")
    assert not any("Once" in part for part in styles), "the prompt has no colour"
    assert styles[" there"] == to_hex(confidence_colour(0.5))
    assert styles[" was"] == f"bold {to_hex(confidence_colour(0.75))}"
    assert {part: style for part, style in styles.items() if "▄" in part} == {" ▄▄▄": "dim"}
    assert not any("bold" in str(span.style) for span in canvas(story_frames()[-1]).spans)


def test_text_is_not_read_as_markup_and_stops_at_its_end():
    frame = make_frames(["[bold]x", "[/]", "\n", "tail"], [0, 0, 0, 0], [0.5] * 4, end=2)[-1]
    assert canvas(frame).plain == "[bold]x[/]"
    assert canvas(make_frames(["a", "b", "c"], [-1, 0, 1], [1.0, 0.5, 0.5])[0]).plain == "a▄▄"
