"""`unmask sample` shows how a text came about: watched, as a page, as pictures, and one sentence where it cannot."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import pytest
from PIL import Image
from rich.console import Console

from unmask.cli import common, sample
from unmask.cli import terminal as display
from unmask.pipeline import MaskedDiffusionLM

SMALL = ("--length", 16, "--steps", 4, "--seed", 3)


@pytest.fixture
def terminal(monkeypatch) -> Console:
    """Standard output as a terminal, and no waiting."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=70, height=30)
    for module in (common, sample):
        monkeypatch.setattr(module, "console", console)
    monkeypatch.setattr(display, "standard_output", console)
    monkeypatch.setattr(display, "SECONDS", 0.0)
    return console


def test_watch_on_a_terminal(run, terminal, mdlm_folder):
    code, out, _ = run("sample", mdlm_folder, *SMALL, "-n", 2, "--prompt", "ab", "--watch")
    assert code == 0
    assert out == "", "the canvas itself is the result"
    shown = terminal.file.getvalue()
    assert "seed 3" in shown
    assert "seed 4" in shown
    assert shown.count("call 4 of 4") >= 2
    assert display.MASK in shown


def test_watch_without_a_terminal_prints_the_texts_alone(run, mdlm_folder, mdlm, tmp_path):
    options = {"prompt": "ab", "length": 16, "steps": 4}
    code, out, _ = run(
        "sample", mdlm_folder, *SMALL, "-n", 2, "--prompt", "ab", "--watch", "--html", tmp_path / "a.html"
    )
    assert code == 0
    assert out == "".join(f"{one.text}\n" for one in mdlm.sample(2, **options, seed=3))
    assert (tmp_path / "a.html").is_file()


def test_watch_and_json_do_not_go_together(run, mdlm_folder):
    code, out, err = run("sample", mdlm_folder, "--watch", "--json")
    assert (code, out) == (2, "")
    assert err == "unmask: --watch and --json cannot be combined; choose one of them.\n"


@pytest.mark.parametrize("watched", [[], ["--watch"]])
def test_pictures_are_of_the_first_text(run, mdlm_folder, mdlm, tmp_path, watched):
    paths = {kind: tmp_path / f"walk.{kind}" for kind in ("html", "gif", "png")}
    code, out, err = run("sample", mdlm_folder, *SMALL, *watched, *(x for k, p in paths.items() for x in (f"--{k}", p)))
    assert code == 0
    assert [line for line in err.splitlines() if line.startswith("Wrote ")] == [f"Wrote {p}" for p in paths.values()]
    (one,) = mdlm.sample(1, length=16, steps=4, seed=3)
    assert one.text in out
    page = paths["html"].read_text(encoding="utf-8")
    data = json.loads(page.split('id="replay">')[1].split("</script>")[0])
    assert "".join(data["finished"]) == one.text
    assert f"Seed 3, {one.calls} network calls, a canvas of 16 tokens." in page
    with Image.open(paths["gif"]) as animation, Image.open(paths["png"]) as still:
        assert (animation.format, animation.n_frames, still.format) == ("GIF", one.calls + 1, "PNG")


def finished(page) -> str:
    return "".join(
        json.loads(page.read_text(encoding="utf-8").split('id="replay">')[1].split("</script>")[0])["finished"]
    )


def test_a_picture_is_drawn_from_the_walk_that_is_printed(run, mdlm_folder, mdlm, tmp_path, monkeypatch):
    asked = ("sample", mdlm_folder, *SMALL, "--prompt", "a[MASK:3]b", "--html", tmp_path / "a.html", "--json")
    expected = [asdict(one) for one in mdlm.sample(3, prompt="a[MASK:3]b", length=16, steps=4, seed=3)]
    code, out, _ = run(*asked, "-n", 3)
    assert code == 0
    assert json.loads(out)["texts"] == expected
    assert finished(tmp_path / "a.html") == expected[0]["text"]
    monkeypatch.setattr(MaskedDiffusionLM, "sample", None)
    code, out, _ = run(*asked)
    assert code == 0, "the text is not written twice"
    assert json.loads(out)["texts"] == expected[:1]


def test_a_blank_in_the_prompt_is_written_whether_watched_or_not(run, mdlm_folder):
    asked = ("sample", mdlm_folder, *SMALL, "--prompt", "a[MASK]b")
    (_, watched, _), (_, out, _) = run(*asked, "--watch"), run(*asked)
    assert "MASK" not in watched
    assert out.endswith(watched)


def test_json_stays_alone_beside_pictures(run, mdlm_folder, tmp_path):
    code, out, _ = run("sample", mdlm_folder, *SMALL, "--json", "--html", tmp_path / "a.html")
    assert code == 0
    assert json.loads(out)["texts"][0]["seed"] == 3
    assert (tmp_path / "a.html").is_file()


@pytest.mark.parametrize("kind", ["html", "gif", "png"])
def test_a_place_that_is_not_there_is_one_sentence(refused, mdlm_folder, tmp_path, kind):
    sentence = refused("sample", mdlm_folder, *SMALL, f"--{kind}", tmp_path / "nowhere" / f"a.{kind}")
    assert "nowhere" in sentence
    assert "create it first" in sentence
    assert f"that ends in .{kind}" in refused("sample", mdlm_folder, *SMALL, f"--{kind}", tmp_path / "a.txt")
    assert list(tmp_path.iterdir()) == []


def test_the_causal_twin_can_be_watched(run, terminal, ar_folder, tmp_path):
    code, _, _ = run("sample", ar_folder, "--length", 8, "--prompt", "ab", "--watch", "--html", tmp_path / "a.html")
    assert code == 0
    assert "call 6 of 6" in terminal.file.getvalue()


def test_a_prompt_that_leaves_nothing_to_write(run, terminal, mdlm_folder, tmp_path):
    pictures = [x for kind in ("html", "gif", "png") for x in (f"--{kind}", tmp_path / f"a.{kind}")]
    code, _, err = run("sample", mdlm_folder, "--length", 2, "--prompt", "ab", "--watch", *pictures)
    assert code == 0, err
    assert "call 0 of 0" in terminal.file.getvalue()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gif", ".html", ".png"]


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_text_is_told_though_its_picture_finds_no_room(run, mdlm_folder, tmp_path, monkeypatch, how):
    _, told, _ = run("sample", mdlm_folder, *SMALL, *how)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unmask.io.os.fsync", full)
    code, out, err = run("sample", mdlm_folder, *SMALL, *how, "--html", tmp_path / "replay.html")
    assert (code, out) == (2, told)
    assert err.startswith(f"unmask: '{tmp_path / 'replay.html'}' could not be written (No space left on device); ")
    assert not list(tmp_path.iterdir())
