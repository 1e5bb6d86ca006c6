"""The first minute: every part comes, in words and as JSON, again when asked again, and stops cleanly."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from unmask.checkpoint import load_checkpoint
from unmask.cli import terminal
from unmask.config import read_recipe
from unmask.evaluation import demo
from unmask.training import Callback, train
from unmask.training.callbacks import read_log

SMALL = [
    "model.hidden_size=16",
    "model.layers=1",
    "model.heads=1",
    "data.source={name: markov, count: 60}",
    "data.tokenizer=byte",
    "data.length=32",
    "training.steps=6",
    "training.log_every=2",
    "training.batch_size=4",
    "training.validate_every=6",
    "training.validation_rows=4",
    "training.save_every=6",
]


@pytest.fixture
def small_demo(shipped_models, tmp_path, monkeypatch):
    """Random models of 48 bytes a row in the place of the large ones, a story that fits, and a run of six steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "read_recipe", lambda name: read_recipe(name, SMALL))
    monkeypatch.setattr(demo, "BLANKS", ("a [MASK]", "b [MASK:2] c", "[MASK] d"))
    for name, text in {
        "FIRST": "One.",
        "MIDDLE": "And two.",
        "LAST": "Three.",
        "STORY": "One. And two. Three.",
    }.items():
        monkeypatch.setattr(demo, name, text)
    return Path("runs/demo")


def test_every_part_comes_and_says_how_long_it_takes(run, small_demo):
    code, out, err = run("demo")
    assert code == 0, err
    assert out.count("(about ") == out.count("took ") == 6
    assert "Fill three blanks" in out
    assert "a [MASK]\n  → a " in out
    assert "One. And two. Three.\n  → One." in out
    assert "autoregressive" in out
    assert "±" in out
    assert "unmask train my.txt" in out.partition("Try next")[2]
    assert "step 6/6" in err
    assert "\x1b" not in out, "no cursor moves where there is no terminal"
    assert (small_demo / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert load_checkpoint(small_demo).config.length == 32


def test_json_holds_all_of_it_and_a_second_run_trains_nothing(run, small_demo, monkeypatch):
    code, out, err = run("demo", "--json")
    assert code == 0, err
    first = json.loads(out)
    assert len(first["stories"]) == demo.STORIES
    assert first["rewritten"].startswith("One.")
    assert first["rewritten"].endswith(" Three.")
    assert len(first["rewritten"]) >= len("One.  Three.")
    assert first["scores"]["autoregressive twin"]["story"]["exact"]
    assert first["scores"]["masked diffusion"]["story"]["bits_per_char_mc_stderr"] > 0
    assert len(first["seconds"]) == 6
    log = (small_demo / "log.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(demo, "train", None)
        code, out, _ = run("demo", "--json")
    assert code == 0
    second = json.loads(out)
    assert (small_demo / "log.jsonl").read_bytes() == log
    assert {**second, "seconds": 0} == {**first, "seconds": 0}
    code, out, _ = run("demo", "--fresh", "--json")
    assert code == 0
    assert (small_demo / "log.jsonl").read_bytes() != log


def test_a_folder_in_use_is_refused_before_anything_is_shown(run, small_demo):
    small_demo.mkdir(parents=True)
    (small_demo / "letter.txt").write_text("mine")
    for extra in ((), ("--fresh",)):
        code, out, err = run("demo", *extra)
        assert code == 2
        assert "not empty; choose another --out." in " ".join(err.split())
        assert "took" not in out
    assert (small_demo / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("letter.txt", "is a file, not a folder; choose another --out."),
        ("letter.txt/x", "cannot be written"),
        ("/proc/nope/x", "cannot be written"),
    ],
)
def test_a_place_that_is_none_is_refused_before_anything_is_shown(run, small_demo, out, words):
    Path("letter.txt").write_text("mine")
    code, shown, err = run("demo", "--out", out)
    assert code == 2
    assert words in " ".join(err.split())
    assert "took" not in shown


def test_another_run_is_not_gone_on_with(run, small_demo):
    train(read_recipe("demo", [*SMALL, "training.steps=2", "optimizer.learning_rate=0.5"]), small_demo)
    code, out, err = run("demo")
    assert (code, "took" in out) == (2, False)
    assert "not the run of the demo; choose another --out, or train again" in " ".join(err.split())
    code, _, err = run("demo", "--fresh", "--json")
    assert code == 0, err


def test_ctrl_c_while_it_trains_saves_and_the_next_goes_on(run, small_demo, monkeypatch):
    pressed = []

    def press_once(self):
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Callback, "on_step", press_once)
    code, out, err = run("demo", "--json")
    assert (code, out) == (130, "")
    assert "the checkpoint of step 1 is saved" in err
    assert "unmask: interrupted" not in err, "it has been said"
    assert not list(small_demo.rglob(".*.tmp"))
    assert load_checkpoint(small_demo).config.length == 32
    code, out, _ = run("demo", "--json")
    assert code == 0
    assert json.loads(out)["training"]["bound"]["nats"] > 0
    assert [one["step"] for one in read_log(small_demo) if "loss" in one] == [2, 4, 6]


def test_ctrl_c_before_leaves_nothing(run, small_demo, monkeypatch):
    def stopped(lm):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "fill_blanks", stopped)
    code, _, err = run("demo")
    assert code == 130
    assert err.endswith("\nunmask: interrupted.\n")
    assert not small_demo.exists()


def test_stories_unmask_on_a_terminal(run, small_demo, monkeypatch):
    """The same frames that `sample --watch` shows go to the watcher, story by story."""
    seen = []
    monkeypatch.setattr(terminal, "watch", lambda frames: seen.append(list(frames)) or seen[-1])
    code, _, err = run("demo")
    assert code == 0, err
    assert len(seen) == demo.STORIES
    for frames in seen:
        assert frames[0].pieces == [None] * 48
        assert None not in frames[-1].pieces
        assert len(frames) - 1 <= demo.CALLS
