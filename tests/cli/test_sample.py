"""`unmask sample`: options, the terminal, and pictures of the first text."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import asdict
from functools import partial

import pytest
from PIL import Image
from rich.console import Console

from unmask.checkpoint import GENERATION_FILE
from unmask.cli import common, terminal
from unmask.constraints import Regex
from unmask.pipeline import MaskedDiffusionLM

SMALL = ("--length", 16, "--steps", 4, "--seed", 3)
PICTURES = ("html", "gif", "png")


@pytest.fixture
def sample(reported, mdlm_folder):
    return partial(reported, "sample", mdlm_folder)


@pytest.fixture
def screen(monkeypatch) -> Console:
    """Standard output as a terminal, without waiting."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=70, height=30)
    monkeypatch.setattr(common, "console", console)
    monkeypatch.setattr(terminal, "standard_output", console)
    monkeypatch.setattr(terminal, "SECONDS", 0.0)
    return console


def picture_options(folder):
    return [word for kind in PICTURES for word in (f"--{kind}", folder / f"replay.{kind}")]


def replayed_text(page) -> str:
    data = page.read_text(encoding="utf-8").split('id="replay">')[1].split("</script>")[0]
    return "".join(json.loads(data)["finished"])


def test_texts_have_their_seeds_and_calls(printed, sample, mdlm_folder, mdlm):
    result = sample("-n", 2, "--length", 12, "--steps", 3)
    assert [one["seed"] for one in result["texts"]] == [0, 1]
    assert all(1 <= one["calls"] <= 3 and len(one["ids"]) == 12 for one in result["texts"])
    assert result["sampler"]["name"] == "ancestral"
    out = printed("sample", mdlm_folder, "--length", 48, "--steps", 4)
    head, text = out.split("\n", 1)
    assert "seed 0, 4 network calls" in head
    assert text == mdlm.generate(1, length=48, steps=4)[0] + "\n", "neither wrapped nor read as markup"


def test_long_texts_are_sampled_in_windows(printed, sample, mdlm_folder):
    options = ("--length", 120, "--steps", 4, "--stride", 40)
    (one,) = sample(*options)["texts"]
    assert len(one["ids"]) == 120
    assert one["calls"] == max(one["order"]) + 1
    watched = printed("sample", mdlm_folder, *options, "--watch")
    assert watched.rstrip("\n") == one["text"].rstrip("\n")


def test_prompt_suffix_and_guidance_apply(sample):
    result = sample("--prompt", "def ", "--suffix", " end.", "--length", 20, "--steps", 4, "--guidance", 1.5)
    assert result["guidance"] == 1.5
    assert result["texts"][0]["text"].startswith("def ")
    assert result["texts"][0]["text"].endswith(" end.")


def test_constraints_apply_together(sample):
    constraints = ("--match", "[a-z ]+", "--with", "cat", "--with", "do", "--without", "e", "--characters", "12-14")
    result = sample(*constraints, "--particles", 3, "--length", 14, "--steps", 5, "-n", 2)
    for one in result["texts"]:
        assert re.fullmatch("[a-z ]{12,14}", one["text"])
        assert {"cat", "do"} <= set(one["text"].split())
        assert "e" not in one["text"].split()
    assert result["particles"] == 3
    assert result["constraints"][:2] == ["Regex(pattern='[a-z ]+')", "Words(words=('cat', 'do'), whole=True)"]
    (one,) = sample("--characters", "13", "--length", 14, "--steps", 5)["texts"]
    assert len(one["text"]) == 13


def test_a_json_schema_applies(sample, tmp_path):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    result = sample("--json-schema", tmp_path / "schema.json", "--length", 16, "--steps", 5, "-n", 2)
    assert all(json.loads(one["text"])["a"] in (True, False) for one in result["texts"])
    assert result["constraints"][0].startswith("JsonSchema(schema={'type': 'object'")


def test_defaults_are_those_of_the_checkpoint_unless_exact(reported, mdlm_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(mdlm_folder, folder)
    (folder / GENERATION_FILE).write_text('{"top_p": 0.5, "steps": 3, "sampler": "remdm"}')
    verbs = {"sample": (folder, "--length", 6), "fill": (folder, "a[MASK:2]b"), "edit": (folder, "abcdef")}
    for verb, words in verbs.items():
        by_default, exact = reported(verb, *words), reported(verb, *words, "--exact")
        assert (by_default["rule"]["top_p"], exact["rule"]["top_p"]) == (0.5, None)
        assert by_default["sampler"]["name"] == ("remdm" if verb == "sample" else "ancestral")
        assert (exact["sampler"]["name"], exact["sampler"]["steps"]) == ("ancestral", None)
        assert reported(verb, *words, "--top-p", 0.7)["rule"]["top_p"] == 0.7


def test_orders_and_samplers_apply(sample):
    result = sample("--length", 12, "--order", "left_to_right", "--steps", 4)
    assert result["sampler"]["order"] == "left_to_right"
    assert result["texts"][0]["order"] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    remdm = ("--sampler", "name: remdm, strategy: cap_conf, eta: 0.3", "--steps", 6)
    result = sample("--length", 12, *remdm, "--min-p", 0.1, "--greedy-tail", 0.5)
    assert (result["sampler"]["strategy"], result["sampler"]["eta"], result["sampler"]["steps"]) == ("cap_conf", 0.3, 6)
    assert (result["rule"]["min_p"], result["rule"]["greedy_tail"]) == (0.1, 0.5)
    assert result["texts"][0]["calls"] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{mdlm}", "--watch", "--json"), "--watch and --json cannot be combined"),
        (("{mdlm}", "--top-p", "1.5"), "top_p"),
        (("{mdlm}", "--seed", 10**23), "seed"),
        (("{mdlm}", "--seed", 2**63 - 1, "-n", 2, "--watch"), "seed"),
        (("{mdlm}", "--length", 10**12), "1000000"),
        (("{mdlm}", "--sampler", "name: [remdm"), "--sampler must be written as 'name: remdm, strategy: cap'"),
        (("{mdlm}", "--match", "[a-z"), "regular expression"),
        (("{mdlm}", "--characters", "many"), "--characters must be a length such as 50 or 40-60, got 'many'"),
        (("{ar}", "--length", 6, "--steps", 2), "steps"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, mdlm_folder, ar_folder, arguments, words):
    filled = [{"{mdlm}": mdlm_folder, "{ar}": ar_folder}.get(one, one) for one in arguments]
    assert words in refused("sample", *filled)


def test_watch_shows_every_text_on_a_terminal(run, screen, mdlm_folder):
    code, out, _ = run("sample", mdlm_folder, *SMALL, "-n", 2, "--prompt", "ab", "--watch")
    assert (code, out) == (0, ""), "the canvas itself is the result"
    shown = screen.file.getvalue()
    assert "seed 3" in shown
    assert "seed 4" in shown
    assert shown.count("call 4 of 4") >= 2
    assert terminal.MASK in shown


@pytest.mark.parametrize(
    ("model", "options", "calls"),
    [
        ("ar", ("--length", 8, "--prompt", "ab"), 6),
        ("mdlm", ("--length", 2, "--prompt", "ab"), 0),
        ("mdlm", ("--length", 12, "--sampler", "name: remdm, eta: 0.5", "--steps", 8), 8),
        ("mdlm", ("--length", 12, "--order", "threshold"), None),
    ],
)
def test_every_sampler_can_be_watched_and_drawn(printed, screen, request, tmp_path, model, options, calls):
    folder = request.getfixturevalue(f"{model}_folder")
    printed("sample", folder, *options, "--watch", *picture_options(tmp_path))
    assert calls is None or f"call {calls} of {calls}" in screen.file.getvalue()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gif", ".html", ".png"]


def test_watch_prints_only_texts_without_a_terminal(printed, mdlm_folder, mdlm):
    out = printed("sample", mdlm_folder, *SMALL, "-n", 2, "--prompt", "a[MASK]b", "--match", "[a-z]+", "--watch")
    options = {"prompt": "a[MASK]b", "length": 16, "steps": 4, "seed": 3, "constraint": Regex("[a-z]+")}
    assert out == "".join(f"{text}\n" for text in mdlm.generate(2, **options))


@pytest.mark.parametrize("watched", [[], ["--watch"]])
def test_pictures_show_the_first_text(run, mdlm_folder, mdlm, tmp_path, watched):
    code, out, err = run("sample", mdlm_folder, *SMALL, *watched, *picture_options(tmp_path))
    assert code == 0
    files = {kind: tmp_path / f"replay.{kind}" for kind in PICTURES}
    assert err == "".join(f"Wrote {path}\n" for path in files.values())
    (one,) = mdlm.sample(1, length=16, steps=4, seed=3)
    assert one.text in out
    assert replayed_text(files["html"]) == one.text
    assert f"Seed 3, {one.calls} network calls, a canvas of 16 tokens." in files["html"].read_text(encoding="utf-8")
    with Image.open(files["gif"]) as animation, Image.open(files["png"]) as still:
        assert (animation.format, animation.n_frames, still.format) == ("GIF", one.calls + 1, "PNG")


def test_a_picture_does_not_change_the_texts(sample, mdlm, tmp_path, monkeypatch):
    options = (*SMALL, "--prompt", "a[MASK:3]b", "--html", tmp_path / "a.html")
    expected = [asdict(one) for one in mdlm.sample(3, prompt="a[MASK:3]b", length=16, steps=4, seed=3)]
    assert sample(*options, "-n", 3)["texts"] == expected
    assert replayed_text(tmp_path / "a.html") == expected[0]["text"]
    monkeypatch.setattr(MaskedDiffusionLM, "sample", None)
    assert sample(*options)["texts"] == expected[:1], "the first text is not sampled twice"


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_that_cannot_be_written_is_refused(refused, mdlm_folder, tmp_path, kind):
    assert "nowhere" in refused("sample", mdlm_folder, *SMALL, f"--{kind}", tmp_path / "nowhere" / f"a.{kind}")
    assert f".{kind}" in refused("sample", mdlm_folder, *SMALL, f"--{kind}", tmp_path / "a.txt")
    assert list(tmp_path.iterdir()) == []


def test_texts_are_printed_even_if_the_disk_is_full(run, mdlm_folder, tmp_path, monkeypatch):
    _, expected, _ = run("sample", mdlm_folder, *SMALL)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unmask.io.os.fsync", full)
    code, out, err = run("sample", mdlm_folder, *SMALL, "--html", tmp_path / "replay.html")
    assert (code, out) == (2, expected)
    assert "replay.html" in err
    assert "No space left on device" in err
    assert not list(tmp_path.iterdir())
