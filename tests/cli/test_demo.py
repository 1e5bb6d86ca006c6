"""`unmask demo` with small models: every part, resuming and interrupting."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from unmask.checkpoint import load_checkpoint
from unmask.cli import demo, terminal
from unmask.pipeline import MaskedDiffusionLM
from unmask.training import Callback, train
from unmask.training.callbacks import read_log
from unmask.training.run import recipe_from

SMALL = (
    "data.source.separator=line",
    "data.length=48",
    "training.steps=6",
    "training.log_every=2",
    "training.batch_size=4",
    "training.validate_every=6",
    "training.validation_rows=4",
    "training.save_every=6",
)
TEXTS = {
    "BLANKS": ("a [MASK]", "b [MASK:2] c", "[MASK] d"),
    "FIRST": "One.",
    "MIDDLE": "And two.",
    "LAST": "Three.",
    "STORY": "One. And two. Three.",
    "PROMPT": "Once",
    "FINE_TUNING": SMALL,
}


@pytest.fixture
def folder(shipped_models, tmp_path, monkeypatch):
    """Random models of 48 bytes as shipped models, a story that fits into them, and a run of six steps."""
    monkeypatch.chdir(tmp_path)
    tales = tmp_path / "tales.txt"
    tales.write_text("".join(f"Captain {one} found gold.\n" for one in range(60)))
    monkeypatch.setattr(demo, "TALES", tales)
    for name, text in TEXTS.items():
        monkeypatch.setattr(demo, name, text)
    return Path("runs/demo")


def test_every_part_is_printed_with_its_time(run, folder, monkeypatch):
    watched = []
    monkeypatch.setattr(terminal, "watch", lambda frames: watched.append(list(frames)) or watched[-1])
    code, out, err = run("demo")
    assert code == 0, err
    assert out.count("took ") == 8
    for words in ("Fill three blanks", "a [MASK]\n  → a ", "One. And two. Three.\n  → One.", "autoregressive", "±"):
        assert words in out
    assert "unmask train my.txt" in out.partition("Try next")[2]
    assert "\x1b" not in out, "no cursor moves without a terminal"
    assert "step 6/6" in err
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert load_checkpoint(folder).config.length == 48
    (frames,) = watched
    assert frames[0].pieces == [None] * 48
    assert None not in frames[-1].pieces


def test_json_has_every_part_and_a_finished_run_is_kept(reported, printed, folder, monkeypatch):
    first = reported("demo")
    assert first["before"].startswith("Once")
    assert first["after"].startswith("Once")
    assert first["before"] != first["after"], "the model learned something"
    assert first["rewritten"].startswith("One.")
    assert first["rewritten"].endswith(" Three.")
    assert first["scores"]["autoregressive twin"]["story"]["exact"]
    assert first["scores"]["masked diffusion"]["story"]["bits_per_char_mc_stderr"] > 0
    assert len(first["seconds"]) == 8
    log = (folder / "log.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(demo, "_train", None)
        assert {**reported("demo"), "seconds": 0} == {**first, "seconds": 0}
    assert (folder / "log.jsonl").read_bytes() == log
    printed("demo", "--fresh", "--json")
    assert (folder / "log.jsonl").read_bytes() != log


@pytest.mark.parametrize("options", [(), ("--fresh",), ("--out", "letter.txt"), ("--out", "letter.txt/x")])
def test_a_folder_in_use_is_refused_before_the_work(run, folder, options):
    """Files of the user are never deleted."""
    folder.mkdir(parents=True)
    for path in (folder / "letter.txt", Path("letter.txt")):
        path.write_text("mine")
    code, out, err = run("demo", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "took" not in out
    assert (folder / "letter.txt").read_text() == Path("letter.txt").read_text() == "mine"


def test_another_run_is_not_resumed(printed, run, folder):
    train(recipe_from(str(demo.TALES), "stories", [*SMALL, "training.steps=2", "optimizer.learning_rate=0.5"]), folder)
    code, out, err = run("demo")
    assert (code, "took" in out) == (2, False)
    assert "--fresh" in err
    printed("demo", "--fresh", "--json")


def test_ctrl_c_during_training_saves_and_the_next_demo_resumes(reported, run, folder, monkeypatch):
    pressed = []

    def press_once(self):
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Callback, "on_step", press_once)
    code, out, err = run("demo", "--json")
    assert (code, out) == (130, "")
    assert err == "Interrupted; the checkpoint of step 1 is saved. Run the same command to resume.\n"
    assert not list(folder.rglob(".*.tmp"))
    assert load_checkpoint(folder).config.length == 48
    assert reported("demo")["training"]["bound"]["nats"] > 0
    assert [one["step"] for one in read_log(folder) if "loss" in one] == [2, 4, 6]


def test_ctrl_c_before_training_leaves_nothing(run, folder, monkeypatch):
    def interrupt(*texts, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(MaskedDiffusionLM, "fill", interrupt)
    code, _, err = run("demo")
    assert code == 130
    assert err.endswith("\nunmask: interrupted.\n")
    assert not folder.exists()
