"""The playground in a real browser, in front of small random models."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.browser.server import serve

pytest.importorskip("fastapi", reason="fastapi is in the extra serve")
pytest.importorskip("uvicorn", reason="uvicorn is in the extra serve")

PHONE, DESK = {"width": 360, "height": 780}, {"width": 1180, "height": 860}


class Reader:
    """An open page; `problems` are its errors and the messages on its console."""

    def __init__(self, browser: Any, url: str, load: float = 10_000, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce", **options})
        self.context.set_default_timeout(10_000)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.requests: list[str] = []
        self.page.on("request", self._record)
        self.page.goto(url)
        self.button("Run").wait_for(timeout=load)

    def _record(self, request: Any) -> None:
        self.requests.append(request.url)
        if request.method == "POST":
            self.bodies.append((request.url[request.url.index("/v1/") :], request.post_data_json))

    def _note(self, message: Any) -> None:
        if "Failed to load resource" not in message.text:  # Chromium's note of a refused request
            self.problems.append(message.text)

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def field(self, name: str) -> Any:
        return self.page.get_by_label(name, exact=True)

    def run(self, text: str | None = None, **fields: str) -> None:
        if text is not None:
            self.field("Text").fill(text)
        for name, value in fields.items():
            self.field(name).fill(value)
        self.button("Run").click()
        self.finish()

    def finish(self, runs: int = 1) -> None:
        for number in range(runs):
            self.page.locator(".head", has_text="finished").nth(number).wait_for()

    def canvas(self, number: int = 0) -> list[str]:
        """The tokens as they are shown; masks are empty."""
        script = "nodes => nodes.map(n => n.matches('.masked') ? '' : n.firstChild.textContent)"
        return self.page.locator("article").nth(number).locator("[data-position]").evaluate_all(script)

    def token(self, position: int) -> Any:
        return self.page.locator(f"[data-position='{position}']")

    def select(self, start: int, end: int) -> None:
        self.page.evaluate(f"document.getElementById('text').setSelectionRange({start}, {end})")
        self.page.locator("#text").dispatch_event("select")

    def slide(self, call: int) -> None:
        self.field("Network call").fill(str(call))

    def code(self) -> str:
        return self.page.locator("pre").inner_text()


@pytest.fixture(scope="module")
def url(mdlm, ar) -> Iterator[str]:
    from unmask.serving.app import create_app

    with serve(create_app({"small": mdlm, "small-ar": ar})) as address:
        yield address


@pytest.fixture
def slow_url(mdlm_folder) -> Iterator[str]:
    """A server whose network takes a while."""
    from unmask.serving.app import create_app

    def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **options: Any) -> Any:
            time.sleep(0.15)
            return function(*arguments, **options)

        return slow

    lm = unmask.load(mdlm_folder, device="cpu")
    for name in ("hidden", "hidden_at"):
        setattr(lm.denoiser, name, slowly(getattr(lm.denoiser, name)))
    with serve(create_app({"small": lm})) as address:
        yield address


@pytest.fixture
def read(browser, url) -> Iterator[Callable[..., Reader]]:
    opened: list[Reader] = []

    def open_page(**options: Any) -> Reader:
        opened.append(Reader(browser, options.pop("at", url), **options))
        return opened[-1]

    yield open_page
    for reader in opened:
        reader.context.close()
        assert reader.problems == []


def printed(program: str, monkeypatch, models: dict[str, Any]) -> str:
    monkeypatch.setattr(unmask, "load", models.__getitem__)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(program, {})
    return output.getvalue().removesuffix("\n")


def test_a_prompt_is_continued_and_watched(read):
    reader = read()
    reader.run("ab", **{"New tokens": "6", "Steps": "3", "Seed": "5"})
    path, body = reader.bodies[-1]
    assert path == "/v1/completions"
    assert body == {"model": "small", "prompt": "ab", "max_tokens": 6, "steps": 3, "seed": 5, "diffusing": True}
    assert len(reader.canvas()) == 8
    assert "" not in reader.canvas()
    assert reader.page.locator("#said").inner_text().startswith("Finished after")
    numbers = reader.page.locator(".written").evaluate_all("nodes => nodes.map(n => n.dataset.percent ?? '')")
    assert numbers
    assert all(0 <= int(number) <= 100 for number in numbers if number)
    assert "percent" in reader.token(5).get_attribute("aria-label")
    assert reader.token(0).get_attribute("aria-label") == "a, given"


def test_every_option_is_sent(read):
    reader = read()

    def sent() -> dict[str, Any]:
        with reader.page.expect_response("**/v1/fill"):
            reader.button("Run").click()
        reader.button("Run").wait_for()
        return reader.bodies[-1][1]

    for name, value in {"Text": "a [MASK:2] b[MASK]", "Temperature": "0.5", "Top-p": "0.9", "Steps": "2"}.items():
        reader.field(name).fill(value)
    reader.field("Order").select_option("confidence")
    reader.field("Sampler").select_option("remdm")
    reader.field("Constraint").select_option("words")
    reader.field("Words in the text, separated by commas").fill("a , b")
    body = sent()
    assert {name: body.get(name) for name in ("temperature", "top_p", "steps")} == {
        "temperature": 0.5, "top_p": 0.9, "steps": 2
    }  # fmt: skip
    assert (body["text"], body["constraint"]) == ("a [MASK:2] b[MASK]", {"with": ["a", "b"]})
    assert (body["sampler"], "order" in body) == ("remdm", False), "a sampler replaces the order"
    reader.field("Order").select_option("left_to_right")
    reader.field("Constraint").select_option("regex")
    reader.field("The whole text matches").fill("a.*")
    body = sent()
    assert (body["order"], "sampler" in body, body["constraint"]) == ("left_to_right", False, {"match": "a.*"})
    reader.field("Constraint").select_option("schema")
    reader.field("The text is JSON of this schema").fill('{"type": "integer"}')
    assert sent()["response_format"]["json_schema"]["schema"] == {"type": "integer"}
    reader.field("The text is JSON of this schema").fill("{")
    reader.button("Run").click()
    reader.page.get_by_role("alert").filter(has_text="The JSON schema cannot be read").wait_for()


def test_the_slider_goes_through_time(read):
    reader = read()
    reader.run("[MASK:6]")
    assert reader.page.locator(".where").inner_text() == "call 6 of 6"
    reader.slide(0)
    assert reader.canvas() == [""] * 6
    for call in range(1, 7):
        reader.button("Next call").click()
        assert reader.canvas().count("") == 6 - call
    reader.button("Previous call").click()
    assert reader.field("Network call").get_attribute("aria-valuetext") == "call 5 of 6"
    assert reader.page.locator(".fresh").count() == 1


def test_play_and_pause(read):
    reader = read(reduced_motion="no-preference")
    reader.run("[MASK:40]")
    pause = reader.button("Pause")
    pause.click()
    where = reader.page.locator(".where").inner_text()
    reader.page.wait_for_timeout(600)
    assert reader.page.locator(".where").inner_text() == where != "call 40 of 40"
    reader.page.get_by_label("Speed").select_option("4")
    reader.button("Play").click()
    reader.page.locator(".where", has_text="call 40 of 40").wait_for()
    reader.button("Play").wait_for()


def test_pinned_tokens_stay_and_the_rest_is_written_again(read):
    reader = read()
    reader.run("q[MASK:6]", Seed="1")
    before = reader.canvas()
    reader.page.get_by_role("radio", name="pins").check(force=True)
    reader.token(3).click()
    assert reader.token(3).get_attribute("aria-pressed") == "true"
    reader.button("Mask all but pinned").click()
    assert reader.canvas() == [before[0], "", "", before[3], "", "", ""]
    reader.field("Seed").fill("9")
    reader.button("Write 5 masks").click()
    reader.button("Back").wait_for()
    reader.finish()
    (row,) = reader.bodies[-1][1]["tokens"]
    assert [place for place, token in enumerate(row) if token is not None] == [0, 3]
    after = reader.canvas()
    assert (after[0], after[3]) == (before[0], before[3])
    assert "" not in after
    assert after != before
    reader.page.get_by_role("radio", name="masks").check(force=True)
    reader.token(1).click()
    reader.token(2).click()
    assert reader.button("Write 2 masks").is_enabled()
    reader.button("Clear marks").click()
    assert reader.canvas() == after
    reader.button("Back").click()
    assert [one or "" for one in reader.canvas()] == [before[0], "", "", before[3], "", "", ""], "as it was left"


def test_an_earlier_canvas_is_continued_another_way(read):
    reader = read()
    reader.run("[MASK:8]", Seed="1")
    reader.slide(3)
    kept = {place: piece for place, piece in enumerate(reader.canvas()) if piece}
    reader.field("Seed").fill("2")
    reader.button("Write 5 masks").click()
    reader.page.locator(".where", has_text="of 5").wait_for()
    reader.finish()
    written = reader.canvas()
    assert len(kept) == 3
    assert {place: written[place] for place in kept} == kept


def test_alternatives_are_those_of_the_library_and_can_be_chosen(read, mdlm):
    reader = read()
    reader.run("ab[MASK]cd")
    reader.token(2).click()
    reader.page.locator(".alternatives button").first.wait_for()
    labels = reader.page.locator(".alternatives button").all_inner_texts()
    expected = [round(100 * p, 1) for _, p in mdlm.fill("ab[MASK]cd", top=8)[0]]
    assert [float(re.search(r"([\d.]+) %", label)[1]) for label in labels] == expected
    chosen = reader.page.locator(".alternatives button[aria-pressed='false']").first
    text = chosen.locator("b").inner_text().replace("␣", "")
    chosen.click()
    assert reader.token(2).get_attribute("aria-pressed") == "true", "a chosen token is pinned"
    assert reader.token(2).evaluate("node => node.firstChild.textContent").strip() in (text, "·")


def test_selected_words_are_rewritten(read):
    reader = read()
    reader.field("Text").fill("a😀 bcd ef")
    reader.select(4, 4)
    assert reader.button("Rewrite selection").is_disabled()
    reader.select(4, 7)
    reader.button("Rewrite selection").click()
    reader.finish()
    path, body = reader.bodies[-1]
    assert (path, body["text"], body["spans"]) == ("/v1/edit", "a😀 bcd ef", [[3, 6]])
    reader.slide(0)
    assert reader.canvas().count("") == 3


def test_a_blank_is_added_at_the_caret(read):
    reader = read()
    reader.field("Text").fill("The  sat.")
    reader.select(4, 4)
    reader.button("Add a blank").click()
    assert reader.field("Text").input_value() == "The [MASK] sat."
    assert reader.page.get_by_text("Fill the blank").is_visible()


def test_scores_have_error_bars(read, mdlm):
    reader = read()
    reader.field("Text").fill("hello world")
    reader.button("Score").click()
    figures = reader.page.locator(".figures")
    figures.wait_for(timeout=60_000)
    assert reader.bodies[-1][1]["precision"] == 10, "a first score comes soon"
    bound = mdlm.score(["hello world"], precision=0.1)
    error = bound.error("bits_per_char")
    assert f"{bound.bits_per_char:.3f} ± {error:.3f} bits per character" in figures.inner_text()
    assert "an upper bound" in figures.inner_text()
    assert reader.page.locator(".whisker").bounding_box()["width"] > 3
    reader.field("Model").select_option("small-ar")
    reader.button("Score").click()
    reader.page.locator(".figures", has_text="exact").wait_for(timeout=60_000)


def test_orders_and_the_autoregressive_model_side_by_side(read):
    reader = read()
    for name in ("confidence", "left to right", "small-ar"):
        reader.page.get_by_role("checkbox", name=name).check()
    reader.field("Text").fill("ab")
    reader.field("New tokens").fill("5")
    reader.button("Compare").click()
    reader.finish(3)
    titles = reader.page.locator("article h2").all_inner_texts()
    assert titles == ["small · confidence", "small · left to right", "small-ar"]
    assert all(len(reader.canvas(number)) == 7 for number in range(3))
    reader.slide(2)
    assert [reader.canvas(number).count("") for number in range(3)] == [3, 3, 3]
    assert reader.canvas(1)[2:4] != ["", ""], "left to right"
    boxes = [one.bounding_box() for one in reader.page.locator("article").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    bodies = {body["model"]: body for _, body in reader.bodies}
    assert "order" not in bodies["small-ar"]


@pytest.mark.parametrize("kind", ["continue", "fill", "edit", "row"])
def test_the_copied_python_makes_the_same_text(read, monkeypatch, mdlm, kind):
    reader = read(permissions=["clipboard-read", "clipboard-write"])
    text = {"continue": 'say "\\é', "fill": "x[MASK:5]y", "edit": "abcdef", "row": "[MASK:7]"}[kind]
    reader.field("Order").select_option("confidence")
    reader.field("Text").fill(text)
    if kind == "continue":
        reader.field("New tokens").fill("9")
    reader.field("Steps").fill("4")
    if kind == "edit":
        reader.select(1, 5)
        reader.button("Rewrite selection").click()
        reader.finish()
    else:
        reader.run(Seed="3")
    if kind == "row":
        reader.slide(2)
        reader.page.get_by_role("button", name=re.compile("Write . masks")).click()
        reader.page.locator(".head", has_text="finished").wait_for()
        reader.button("Back").wait_for()
    said = reader.page.locator("#said")
    said.filter(has_text="Finished").wait_for()
    reader.button("Copy").click()
    reader.page.get_by_text("Python copied.").wait_for()
    program = reader.page.evaluate("navigator.clipboard.readText()")
    assert program == reader.code() or program == reader.code() + "\n"
    shown = said.text_content().split(" calls: ", 1)[1]
    assert printed(program, monkeypatch, {"small": mdlm}) == shown


def test_the_command_line_makes_the_same_text(read, run, mdlm_folder):
    import shlex

    reader = read()
    reader.run("it's", **{"New tokens": "5", "Seed": "3"})
    shown = reader.page.locator("#said").text_content().split(" calls: ", 1)[1]
    reader.page.get_by_role("radio", name="Command line").check(force=True)
    words = shlex.split(reader.code())
    assert words[:3] == ["unmask", "sample", "small"]
    code, out, _ = run("sample", mdlm_folder, *words[3:], "--device", "cpu", "--json")
    assert code == 0
    assert json.loads(out)["texts"][0]["text"] == shown
    reader.page.get_by_role("radio", name="HTTP").check(force=True)
    assert "/v1/completions" in reader.code()


def test_a_run_can_be_stopped(read, slow_url):
    reader = read(at=slow_url)
    reader.field("Text").fill("[MASK:40]")
    reader.button("Run").click()
    reader.page.locator(".written").first.wait_for()
    reader.button("Stop").click()
    reader.page.locator(".head", has_text="stopped").wait_for()
    written = reader.canvas()
    assert 0 < written.count("") < 40, "what was written stays"
    reader.page.wait_for_timeout(500)
    assert reader.canvas() == written
    reader.button("Run").wait_for()


def test_keyboard_alone(read):
    reader = read()
    keys = reader.page.keyboard
    keys.press("Tab")
    assert reader.page.evaluate("document.activeElement.className") == "skip"
    keys.press("Tab")
    assert reader.page.evaluate("document.activeElement.id") == "text"
    keys.press("Control+a")
    keys.type("x[MASK:5]")
    keys.press("Control+Enter")
    reader.finish()
    seen = set()
    for _ in range(60):
        keys.press("Tab")
        active = "(n => n.dataset.position ?? n.getAttribute('aria-label') ?? n.textContent)(document.activeElement)"
        seen.add(reader.page.evaluate(active))
        if "0" in seen:
            break
    assert {"Run", "Play", "0"} <= {name.strip() for name in seen}, "the canvas is one stop of the Tab key"
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    position = "Number(document.activeElement.dataset.position)"
    assert reader.page.evaluate(position) == 2
    assert reader.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    keys.press("p")
    assert reader.token(2).get_attribute("aria-pressed") == "true"
    keys.press("ArrowRight")
    keys.press("m")
    assert reader.canvas()[3] == ""
    keys.press("End")
    assert reader.page.evaluate(position) == 5
    keys.press("Enter")
    reader.page.get_by_role("region", name="Token").wait_for()
    keys.press("Tab")
    assert reader.page.evaluate("document.activeElement.textContent.trim()") == "Pin", "out of the canvas"


def test_what_a_screen_reader_finds(read):
    reader = read()
    reader.run("a[MASK:3]")
    page = reader.page
    assert page.get_by_role("main").count() == page.get_by_role("heading", level=1).count() == 1
    assert page.locator("#said").get_attribute("aria-live") == "polite"
    assert page.get_by_role("group", name="Canvas of small").count() == 1
    nameless = (
        "nodes => nodes.filter(n => !(n.labels?.length || n.getAttribute('aria-label') || n.textContent.trim())).length"
    )
    assert page.locator("button, input, select, textarea").evaluate_all(nameless) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_horizontal_scrolling(read, scheme):
    reader = read(viewport=PHONE, color_scheme=scheme, has_touch=True)
    for name in ("How it is written", "Compare side by side"):
        reader.page.get_by_text(name).click()
    reader.run("w" * 16 + "[MASK:30]")
    reader.token(20).click()
    reader.page.locator(".alternatives button").first.wait_for()
    assert reader.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    small = "nodes => nodes.filter(n => n.offsetParent && n.getBoundingClientRect().height < 24).length"
    assert reader.page.locator("button, select").evaluate_all(small) == 0


def test_dark_mode_has_contrast(read):
    script = """() => ["--page", "--paper", "--ink", "--quiet", "--accent", "--on-accent", "--error"].map(
        (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim())"""
    pages = {}
    for scheme in ("light", "dark"):
        page, paper, ink, quiet, accent, on_accent, error = read(color_scheme=scheme).page.evaluate(script)
        for text, behind in (
            (ink, page),
            (quiet, page),
            (quiet, paper),
            (accent, paper),
            (on_accent, accent),
            (error, paper),
        ):
            assert contrast(text, behind) >= 4.5, f"{text} on {behind}"
        pages[scheme] = page
    assert luminance(pages["dark"]) < 0.05 < luminance(pages["light"])


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_reduced_motion_skips_the_animation(read):
    reader = read(reduced_motion="reduce")
    reader.run("[MASK:40]")
    reader.page.locator(".where", has_text="call 40 of 40").wait_for(timeout=1000)
    assert reader.token(0).evaluate("node => getComputedStyle(node).transitionDuration") == "0s"


def test_errors_are_the_sentence_of_the_server(read):
    reader = read()
    for text, sentence in (("a [MASK:0]", "A blank must be"), ("a[MASK:60]", "there is room for 48")):
        reader.field("Text").fill(text)
        reader.button("Run").click()
        reader.page.get_by_role("alert").filter(has_text=sentence).wait_for()


def test_a_server_that_is_gone(read):
    reader = read()
    reader.context.set_offline(True)
    reader.button("Run").click()
    reader.page.get_by_role("alert").filter(has_text="The server does not answer").wait_for()


def test_a_key_is_asked_for(browser, mdlm):
    from unmask.serving.app import create_app

    context = browser.new_context(viewport=DESK)
    with serve(create_app({"small": mdlm}, api_key="secret")) as address:
        page = context.new_page()
        page.goto(address)
        page.get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Try again").click()
        page.get_by_label("Text", exact=True).fill("[MASK:3]")
        page.get_by_role("button", name="Run").click()
        page.locator(".head", has_text="finished").wait_for()
    context.close()


def test_markup_is_shown_as_text(read):
    reader = read()
    text = "<img src=x onerror='window.broken=1'>"
    reader.run(f"{text}[MASK]")
    assert reader.page.locator("main img").count() == 0
    assert "".join(reader.canvas()[: len(text)]).replace("·", " ") == text
    assert reader.page.evaluate("window.broken") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(read, scheme):
    axe = Path(os.environ.get("UNMASK_NODE_MODULES", "node_modules")) / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("no axe-core in node_modules or UNMASK_NODE_MODULES")
    reader = read(color_scheme=scheme)
    reader.run("ab", **{"New tokens": "8", "Steps": "4"})
    reader.slide(2)
    reader.token(4).click()
    reader.page.locator(".alternatives button").first.wait_for()
    reader.button("Score").click()
    reader.page.locator(".figures").wait_for(timeout=60_000)
    reader.page.evaluate(axe.read_text(encoding="utf-8"))
    assert [fault["id"] for fault in reader.page.evaluate("axe.run()")["violations"]] == []
