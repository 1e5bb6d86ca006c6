"""The HTML replay in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frames import make_frames, story_frames
from unmask.plots.replay import write_pictures

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1180, "height": 760}
MASK = "rgb(228, 232, 237)"


class Reader:
    """An open page, its console messages and its network requests."""

    def __init__(self, browser, path: Path, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url)

    def canvas(self) -> str:
        return self.page.locator("#canvas").get_attribute("aria-label")

    def where(self) -> str:
        return self.page.locator("#where").text_content()

    def slide(self, call: int) -> None:
        self.page.locator("#slider").fill(str(call))

    def background(self, position: int) -> str:
        chip = f"document.querySelector(\"[data-position='{position}'] .chip\")"
        self.page.wait_for_timeout(350)
        return self.page.evaluate(f"getComputedStyle({chip}).backgroundColor")


@pytest.fixture
def read(browser, tmp_path):
    """Open the replay of some frames; at the end there must be no console message and no other request."""
    readers = []

    def open_page(frames, caption="", **options):
        path = tmp_path / f"{len(readers)}.html"
        write_pictures(frames, [path], caption)
        readers.append(Reader(browser, path, **options))
        return readers[-1]

    yield open_page
    for reader in readers:
        reader.context.close()
        assert reader.messages == []
        assert reader.requests == [reader.url]


def test_the_slider_shows_every_frame(read):
    reader, frames = read(story_frames(), "Seed 7 & more"), story_frames()
    spots = "JSON.stringify([...document.querySelectorAll('.chip')].map((c) => c.getBoundingClientRect()))"
    before = reader.page.evaluate(spots)
    assert reader.page.locator("#caption").text_content() == "Seed 7 & more"
    assert reader.canvas() == frames[0].text == "Once upon░░░░░"
    assert reader.page.locator(".masked").count() == 5
    for frame in (frames[2], frames[3], frames[1]):
        reader.slide(frame.call)
        assert reader.canvas() == frame.text
        assert reader.where() == f"call {frame.call} of 3"
        assert reader.page.locator("#canvas").inner_text().split() == frame.text.replace("░", " ").split()
        assert reader.page.evaluate(spots) == before, "a token is where its mask was"


def test_the_page_plays_by_itself_unless_motion_is_reduced(read):
    reader = read(story_frames(), reduced_motion="no-preference")
    reader.page.locator("#where", has_text="call 3 of 3").wait_for(timeout=10_000)
    assert reader.page.locator("#play").get_attribute("aria-label") == "Play"
    still = read(story_frames())
    still.page.wait_for_timeout(1000)
    assert still.where() == "call 0 of 3"


def test_play_stops_at_the_end_and_restarts(read):
    reader = read(story_frames())
    play = reader.page.locator("#play")
    reader.page.locator("#speed").select_option("4")
    play.click()
    assert play.get_attribute("aria-label") == "Pause"
    reader.page.locator("#where", has_text="call 3 of 3").wait_for(timeout=5000)
    assert play.get_attribute("aria-label") == "Play"
    reader.page.locator("#speed").select_option("0.5")
    play.click()
    assert reader.where() == "call 0 of 3"
    play.click()
    reader.page.wait_for_timeout(1000)
    assert reader.where() == "call 0 of 3", "paused"


def test_buttons_keys_and_charts_step(read):
    reader = read(story_frames())
    assert reader.page.locator("#back").is_disabled()
    reader.page.locator("#forth").click()
    assert reader.where() == "call 1 of 3"
    reader.page.locator("h1").click()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        reader.page.keyboard.press(key)
    assert reader.where() == "call 2 of 3"
    box = reader.page.locator("#means").bounding_box()
    reader.page.mouse.click(box["x"] + 0.1 * box["width"], box["y"] + 5)
    assert reader.where() == "call 1 of 3"
    for chart, expected in (("counts", [1.0, 0.5, 1.0]), ("means", [0.375, 0.75, 0.45])):
        bars = reader.page.locator(f"#{chart} rect").all()
        assert [float(bar.get_attribute("height")) for bar in bars] == pytest.approx(expected)


def test_a_token_shows_its_call_and_confidence(read):
    reader = read(story_frames())
    assert reader.background(2) == MASK
    reader.slide(2)
    token = reader.page.locator("[data-position='4'] .chip")
    token.hover()
    assert reader.page.locator("#tip").text_content() == "call 1 of 3 · confidence 0.50"
    token.click()
    facts = reader.page.locator("#details dd").all_inner_texts()
    assert facts == ["␣there", "5 of 7", "call 1 of 3", "0.5000"]
    assert reader.page.locator("#written li").all_inner_texts() == ["␣was\n0.75"]
    reader.page.locator("[data-position='0'] .chip").hover()
    assert reader.page.locator("#tip").text_content() == "given"
    reader.slide(3)
    assert len({*(reader.background(position) for position in (2, 6, 3)), MASK}) == 4
    assert reader.background(0) == "rgba(0, 0, 0, 0)", "given tokens have no colour"


def test_markup_is_shown_as_text(read):
    pieces = ["</script><script>window.broken = 1</script>", "<img src=x onerror='broken()'>", ' "&lt;"', "\n", "<!--"]
    reader = read(make_frames(pieces, range(5), [0.5] * 5), caption="<i>not italic</i>")
    reader.slide(5)
    assert reader.canvas() == "".join(pieces)
    assert reader.page.evaluate("window.broken") is None
    assert reader.page.locator("#canvas img").count() == 0
    assert reader.page.locator("#caption").text_content() == "<i>not italic</i>"


def test_themes_and_narrow_screens(read):
    dark = read(story_frames(), color_scheme="dark")
    ink = "getComputedStyle(document.body).backgroundColor"
    assert dark.page.evaluate(ink) == "rgb(16, 19, 23)"
    dark.page.locator("#theme").click()
    assert dark.page.evaluate(ink) == "rgb(245, 246, 248)"
    phone = read(make_frames([" word"] * 90, range(90), [0.5] * 90), viewport=PHONE)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_multibyte_characters_and_runs_without_calls(read, mdlm):
    frames = list(mdlm.stream("héllo €", length=40, steps=9, seed=2))
    reader = read(frames)
    for frame in frames:
        reader.slide(frame.call)
        assert reader.canvas() == frame.text
    finished = read(list(mdlm.stream("abcd", length=4)))
    finished.page.locator("#play").click()
    finished.page.wait_for_timeout(600)
    assert (finished.canvas(), finished.where()) == ("abcd", "call 0 of 0")
