"""The exported playground in a real browser, from `file://` and from a static host, against the library."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.browser.test_playground import Reader
from tests.conftest import make_checkpoint
from unmask.convert.web import RUNTIME, export_web
from unmask.random import Purpose, uniform

pytest.importorskip("onnxscript", reason="onnxscript is in the extra export")
pytest.importorskip("onnxruntime", reason="onnxruntime is in the extra export")

MODULES = Path(os.environ.get("UNMASK_NODE_MODULES", "node_modules"))
GREEDY = {"Temperature": "0"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Exports of a byte-level model, whose rows end anywhere, and of `stories`, whose rows are filled with EOS."""
    if not all((MODULES / file).is_file() for file in RUNTIME.values()):
        pytest.skip("no onnxruntime-web and @huggingface/tokenizers in node_modules or UNMASK_NODE_MODULES")
    root = tmp_path_factory.mktemp("web")
    make_checkpoint(root / "small")
    export_web(root / "small", root / "small-web", "float32", MODULES)
    make_checkpoint(root / "ended", policy="supervised_eos")
    export_web(root / "ended", root / "ended-web", "float32", MODULES)
    export_web("stories", root / "stories-web", "int8", MODULES)
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def stories(browser, folders) -> Iterator[Reader]:
    """`stories` from `file://`."""
    reader = Reader(browser, (folders["stories-web"] / "index.html").as_uri(), load=60_000)
    yield reader
    reader.context.close()


@pytest.fixture(scope="module")
def small(browser, folders) -> Iterator[Reader]:
    reader = Reader(browser, (folders["small-web"] / "index.html").as_uri(), load=60_000)
    yield reader
    reader.context.close()


def finished(reader: Reader) -> str:
    reader.page.locator("#said", has_text="Finished").wait_for()
    assert reader.problems == []
    return reader.page.locator("#said").text_content().split(" calls: ", 1)[1]


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a [MASK], there was a little girl.",
        'Tim said, "I am [MASK]!" and ran to the big tree.',
        "The cat sat on the mat[MASK] Then it slept.",
    ],
)
def test_greedy_fill_of_one_blank_is_that_of_the_library(stories, text):
    stories.run(text, **GREEDY)
    assert finished(stories) == unmask.load("stories", device="cpu").fill(text, greedy=True)


def test_the_folder_is_about_20_mb_and_asks_for_nothing_else(folders, stories):
    assert sum(file.stat().st_size for file in folders["stories-web"].rglob("*") if file.is_file()) < 22e6
    assert all(url.startswith(("file:", "blob:", "data:")) for url in stories.requests)


def test_a_static_host(browser, folders):
    handler = partial(QuietHandler, directory=str(folders["small-web"]))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reader = Reader(browser, f"http://127.0.0.1:{server.server_address[1]}/", load=60_000)
        reader.run("ab[MASK:3]", **GREEDY)
        assert len(finished(reader)) == 5
        reader.context.close()
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def test_random_numbers_are_those_of_the_library(small):
    places = [(0, 3, 0, 0, 0), (7, 4, 5, 6, 7), (-1, 6, 2, 0, 9), (2**40 + 3, 4, 1, 2, 3711)]
    script = "(places) => places.map((place) => unmask.uniform(...place))"
    found = small.page.evaluate(script, [list(place) for place in places])
    assert found == [float(uniform(seed, Purpose(purpose), *rest)) for seed, purpose, *rest in places]


@pytest.mark.parametrize("order", ["", "confidence", "margin", "entropy", "left_to_right", "uniform"])
@pytest.mark.parametrize("steps", ["", "3"])
def test_same_seed_same_text_as_the_library(small, folders, order, steps):
    """Float32 weights, so the logits agree to about 1e-5."""
    lm = unmask.load(folders["small"], device="cpu")
    small.field("Order").select_option(order)
    if not order:
        small.field("Sampler").select_option("ancestral")
    small.run("hey [MASK:7] you", **{"Temperature": "0.8", "Top-p": "0.9", "Steps": steps, "Seed": "11"})
    chosen = {"order": order} if order else {"sampler": "ancestral"}
    options = {"temperature": 0.8, "top_p": 0.9, "steps": int(steps) if steps else None, "seed": 11, **chosen}
    assert finished(small) == lm.fill("hey [MASK:7] you", **options)


@pytest.mark.parametrize("order", ["", "confidence"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_end_as_those_of_the_library(browser, folders, order, temperature):
    """The rule that only EOS follows EOS, in a model whose rows are filled with EOS."""
    lm = unmask.load(folders["ended"], device="cpu")
    reader = Reader(browser, (folders["ended-web"] / "index.html").as_uri(), load=60_000)
    reader.field("Order").select_option(order)
    reader.run("ab", **{"New tokens": "30", "Steps": "9", "Temperature": str(temperature), "Seed": "5"})
    chosen = {"order": order} if order else {"sampler": "ancestral"}
    expected = lm.generate(prompt="ab", length=32, steps=9, temperature=temperature, seed=5, **chosen)[0]
    assert finished(reader) == expected
    reader.context.close()


def test_tokens_are_those_of_the_library(stories):
    tokenizer = unmask.load("stories", device="cpu").tokenizer
    texts = ["Once upon a time", "  two  spaces\n\nlines\t", "it's Émile's 42nd naïve café…", "日本 😀!", "don't—STOP"]
    for text in texts:
        stories.field("Text").fill(f"{text}[MASK]")
        script = "(text) => new unmask.Tokenizer(unmask.assets.tokenizer.tokenizer, unmask.assets.tokenizer.config)"
        script += ".encode(text, { add_special_tokens: false }).ids"
        assert stories.page.evaluate(script, text) == tokenizer.encode(text, add_special_tokens=False)


def test_alternatives_edits_pins_and_stopping(small, folders):
    lm = unmask.load(folders["small"], device="cpu")
    small.field("Order").select_option("confidence")
    small.run("abcdef[MASK]", **{"Temperature": "0", "Steps": "", "Top-p": ""})
    small.token(2).click()
    small.page.locator(".alternatives button").first.wait_for()
    shares = [float(one.rstrip(" %")) for one in small.page.locator(".alternatives span").all_inner_texts()]
    text = "ab[MASK]def" + finished(small)[-1]
    assert shares == pytest.approx([100 * p for _, p in lm.fill(text, top=8)[0]], abs=0.11)
    small.field("Text").fill("abcdef")
    small.select(1, 3)
    small.button("Rewrite selection").click()
    small.finish()
    assert finished(small) == lm.edit("abcdef", spans=[(1, 3)], order="confidence", temperature=0.0, seed=11)
    small.page.get_by_role("radio", name="masks").check(force=True)
    small.token(0).click()
    small.button("Write 1 mask").click()
    small.button("Back").wait_for()
    assert "" not in small.canvas()
    small.field("Text").fill("[MASK:2-4]")
    small.button("Run").click()
    small.page.get_by_role("alert").filter(has_text="A blank must be [MASK] or [MASK:n]").wait_for()
    assert small.button("Score").count() == 0, "the page offers only what it can do"
    assert small.page.get_by_label("Constraint").count() == 0
