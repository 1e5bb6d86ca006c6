"""A canvas on a terminal: what is shown, how fast, and nothing where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.frames import make_frames, story_frames
from unmask.cli.terminal import LONGEST_PAUSE, SECONDS, canvas, show, watch
from unmask.plots.style import confidence_colour, to_hex


class Time:
    """A clock that only sleeping and the network move."""

    def __init__(self, network: float = 0.0) -> None:
        self.now, self.slept, self._network = 100.0, 0.0, network

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def computing(self, frames):
        for frame in frames:
            if frame.call:
                self.now += self._network
            yield frame


def terminal(width: int = 60, height: int = 20) -> Console:
    size = {"width": width, "height": height}
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", **size)


def shown(console: Console) -> str:
    return console.file.getvalue()


@pytest.mark.parametrize(("calls", "seconds"), [(2, 2 * LONGEST_PAUSE), (40, SECONDS), (400, SECONDS)])
def test_an_instant_network_is_slowed_to_what_an_eye_follows(calls, seconds):
    time = Time()
    frames = make_frames(["x"] * calls, range(calls), [0.5] * calls)
    assert watch(time.computing(frames), terminal(), time, time.sleep) == frames
    assert time.slept == pytest.approx(seconds)


def test_a_slow_network_is_not_waited_for():
    time = Time(network=0.3)
    frames = make_frames(["x"] * 10, range(10), [0.5] * 10)
    watch(time.computing(frames), terminal(), time, time.sleep)
    assert time.slept == 0.0
    assert time.now == pytest.approx(103.0)


def test_the_terminal_shows_masks_then_text_and_keeps_the_end():
    console, time = terminal(), Time()
    watch(story_frames(), console, time, time.sleep)
    first, last = shown(console).split("call 1 of 3")[0], shown(console).split("call 3 of 3 · 0.8 s")[-1]
    assert "call 0 of 3" in first
    assert "▄" in first
    assert "there" not in first
    assert "▄" not in last
    assert "there" in last


def test_a_terminal_that_is_too_low_still_says_how_far_it_is_and_shows_all_of_it_at_last():
    console, time = terminal(width=40, height=8), Time()
    pieces = [f" word{i}" for i in range(100)]
    watch(make_frames(pieces, [i // 10 for i in range(100)], [0.5] * 100), console, time, time.sleep)
    painted = shown(console).split("call ")[1:]
    assert [part.split(" ")[0] for part in painted[:11]] == [str(call) for call in range(11)]
    assert "word99" not in "".join(painted[:10])
    assert "word99" in painted[-1]


def test_fast_calls_are_not_all_painted():
    console, time = terminal(), Time()
    watch(make_frames(["x"] * 1000, range(1000), [0.5] * 1000), console, time, time.sleep)
    assert 50 < shown(console).count(" of 1000") <= SECONDS / 0.05 + 3
    assert "call 1000 of 1000" in shown(console)


def test_nothing_is_shown_and_nothing_waits_without_a_terminal():
    console, time = Console(file=io.StringIO()), Time()
    assert watch(iter(story_frames()), console, time, time.sleep) == story_frames()
    assert shown(console) == ""
    assert time.slept == 0.0


def test_a_dumb_terminal_is_none(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console, time = terminal(), Time()
    assert watch(iter(story_frames()), console, time, time.sleep) == story_frames()
    assert (shown(console), time.slept) == ("", 0.0)


def test_on_a_dumb_terminal_the_text_is_printed_once(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("unmask.cli.terminal.standard_output", terminal())
    show(iter(story_frames()))
    assert capsys.readouterr().out == f"{story_frames()[-1].text}\n"


def test_colours_are_confidences():
    frame = story_frames()[2]
    text = canvas(frame)
    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}
    assert text.plain.startswith("Once upon")
    assert not any("Once" in part for part in styles), "what was given has no colour"
    assert styles[" there"] == to_hex(confidence_colour(0.5))
    assert styles[" was"] == f"bold {to_hex(confidence_colour(0.75))}"
    assert {part: style for part, style in styles.items() if "▄" in part} == {" ▄▄▄": "dim"}
    assert not any("bold" in str(span.style) for span in canvas(story_frames()[-1]).spans)


def test_a_text_is_not_read_as_markup_and_ends_where_it_ends():
    frame = make_frames(["[bold]x", "[/]", "\n", "tail"], [0, 0, 0, 0], [0.5] * 4, end=2)[-1]
    assert canvas(frame).plain == "[bold]x[/]"


def test_masks_of_single_letters_are_single():
    assert canvas(make_frames(["a", "b", "c"], [-1, 0, 1], [1.0, 0.5, 0.5])[0]).plain == "a▄▄"
