"""`unmask train` on files, folders, datasets and recipes, and `unmask eval` on the same data."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import signal
import sys
from pathlib import Path

import datasets
import pytest
import torch

from unmask.config import recipe_for
from unmask.errors import UnmaskError
from unmask.models import DiT
from unmask.training import Callback
from unmask.training.checkpointing import find_latest, run_lock

WORDS = "the cat sat on the mat. "
SMALL = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=32", "training.batch_size=4"]
SHORT = [*SMALL, "training.steps=2"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text(WORDS * 200)
    return tmp_path


def test_a_text_file_becomes_a_checkpoint(reported, printed, run, refused, folder):
    out = printed("train", "my.txt", *SHORT)
    assert "±" in out
    assert "Next: unmask sample runs/my" in out
    assert "Next: unmask sample 'runs/my other'" in printed("train", "my.txt", *SHORT, "--out", "runs/my other")
    assert run("sample", "runs/my", "--length", 8, "--json")[0] == 0
    assert run("eval", "runs/my", "--json")[0] == 0
    assert "--resume" in refused("train", "my.txt", *SHORT)
    assert reported("train", "my.txt", *SHORT, "training.steps=5", "--resume")["steps"] == 5
    assert "--resume takes no value or 'auto', got 'now'" in refused("train", "my.txt", "--resume=now")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_saves_and_exits_as_a_shell_expects(run, reported, folder, monkeypatch, name, code):
    with monkeypatch.context() as patch:
        patch.setattr(Callback, "on_step", lambda self: signal.raise_signal(getattr(signal, name)))
        stopped, out, _ = run("train", "my.txt", *SHORT)
    assert stopped == code
    assert "the checkpoint of step 1 is saved. Resume with:\n  unmask train runs/my/recipe.yaml --out" in out
    assert reported("train", "my.txt", *SHORT, "--resume")["steps"] == 2


def test_a_run_under_nohup_ignores_the_end_of_its_terminal(reported, folder, monkeypatch):
    monkeypatch.setattr(Callback, "on_step", lambda self: signal.raise_signal(signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert reported("train", "my.txt", *SHORT)["steps"] == 2
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_whose_terminal_is_closed_is_saved(folder):
    pid, terminal = pty.fork()
    if not pid:
        long = [*SMALL, "training.steps=1000000", "training.log_every=1", "training.sample_every=1"]
        os.execv(sys.executable, [sys.executable, "-m", "unmask", "train", "my.txt", *long])
    shown = b""
    while b"tokens/s" not in shown:
        shown += os.read(terminal, 1 << 16)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
    assert find_latest(Path("runs/my")) is not None


def test_a_folder_of_a_live_run_is_refused(refused, folder):
    with run_lock(Path("runs/my")):
        for options in ((), ("--resume",), ("--resume", "auto")):
            message = refused("train", "my.txt", *SHORT, *options)
            assert f"'runs/my' is in use: process {os.getpid()} on " in message


def test_standard_input_is_trained_on_but_not_evaluated(printed, refused, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WORDS.encode() * 200)))
    printed("train", "-", *SHORT)
    message = refused("eval", "runs/stdin")
    assert "standard input" in message
    assert "--data" in message


def test_a_recipe_may_be_followed_by_one_text(printed, refused, folder):
    printed("train", "demo", "my.txt", *SHORT, "--out", "run", "--json")
    assert "my.txt" in Path("run/recipe.yaml").read_text()
    Path("other.txt").write_text(WORDS)
    message = refused("train", "my.txt", "other.txt")
    assert "Cannot train on both 'my.txt' and 'other.txt'" in message
    assert "data.source.paths='[my.txt, other.txt]'" in message
    assert not Path("runs").exists()


def test_a_mixed_folder(run, reported, refused, folder):
    body = WORDS * 20
    Path("mixed").mkdir()
    Path("mixed/a.md").write_text(body)
    Path("mixed/b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"body": body}).encode() + b"\n") * 9)
    Path("mixed/c.csv").write_text("n,body\n" + f"1,{body}\n" * 9)
    for name in ("photo.[png]", "d.pdf", "e.pdf", "README"):
        Path("mixed", name).write_bytes(b"\x89PNG")
    code, _, err = run("train", "mixed", *SHORT)
    assert code == 0, err
    skipped = err.partition("Skipped files: ")[2]
    assert all(words in skipped for words in ("1 .[png]", "2 .pdf", "1 without suffix"))
    reported("eval", "runs/mixed", "--data", "mixed")
    bound = reported("eval", "runs/mixed", "--data", "mixed/b.jsonl.gz", "--field", "body")["headline"]
    assert bound["bytes"] == 9 * len(body)
    message = refused("eval", "runs/mixed", "--data", "mixed/b.jsonl.gz", "--field", "bodi")
    assert "Did you mean 'body'" in message


def test_a_saved_dataset(printed, reported, refused, folder):
    texts = [WORDS * 5] * 20
    datasets.Dataset.from_dict({"text": texts}).save_to_disk("saved")
    printed("train", "saved", *SHORT)
    bound = reported("eval", "runs/saved", "--data", "saved", "--data", "saved")["headline"]
    assert bound["bytes"] == 2 * sum(map(len, texts))
    assert "no option 'separator'" in refused("eval", "runs/saved", "--data", "saved", "--separator", "line")


def test_arguments_that_name_data(folder):
    Path("genome.fa.zst").touch()
    assert recipe_for("genome.fa.zst").data.source.name == "text"
    assert recipe_for("-").data.source.name == "stdin"
    source = recipe_for("hf:org/stories", ["data.source.config=en", "data.source.streaming=true"]).data.source
    assert (source.name, source.path, source.config, source.streaming) == ("huggingface", "org/stories", "en", True)
    assert recipe_for("my.txt", ["data.source.paths=[a.txt, b.txt]"]).data.source.paths == ["a.txt", "b.txt"]
    with pytest.raises(UnmaskError, match=f"Did you mean '{folder / 'my.txt'}'"):
        recipe_for(str(folder / "mi.txt"))
    with pytest.raises(UnmaskError, match="Choose one of: bert-small, ") as caught:
        recipe_for("nothing-of-the-kind")
    assert "genome" not in str(caught.value)


def test_a_batch_that_does_not_fit_names_one_that_does(printed, refused, folder, monkeypatch):
    """With memory for three sequences, ten of them need four micro-batches."""
    hidden = DiT.hidden

    def limited(self, input_ids, *args, **kwargs):
        if len(input_ids) > 3 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return hidden(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(DiT, "hidden", limited)
    command = ("train", "my.txt", *SHORT, "training.batch_size=10")
    message = refused(*command)
    assert "10 sequences of 32 tokens" in message
    assert "training.accumulation=4" in message
    printed(*command, "training.accumulation=4")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dmeo",), "Did you mean 'demo'"),
        (("demo", f"training.seed={2**63}"), "got 9223372036854775808"),
        (("demo", "expect.bits_per_byte=.nan"), "expect.bits_per_byte must be a finite number, got nan"),
        (("demo", "optimizer.betas=[0.9]"), "betas.1 is missing, got [0.9]."),
        (("demo", "data.source={name: mixture, parts: [{source: txet}]}"), "Did you mean 'text'?"),
        (("demo", "--from", "{mdlm}", "model.lora.targets=[]"), "targets must have at least 1 item, got []."),
        (("demo", "--from", "{mdlm}", "objective=ar"), "choose another objective"),
        (("planner", "nothing.txt", "--from", "smoke"), "nothing.txt' is neither text to train on nor an override"),
        (("demo", "--out", "my.txt"), "'my.txt' is a file, not a folder; choose another folder."),
        (("broken.yaml",), "'broken.yaml' is not YAML (line 3: "),
        (("binary.yaml",), "'binary.yaml' is not YAML ('utf-8' codec"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, mdlm_folder, folder, arguments, words):
    Path("broken.yaml").write_text("data:\n  length: 8\n training: [\n")
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    before = sorted(Path().rglob("*"))
    assert words in refused("train", *(mdlm_folder if one == "{mdlm}" else one for one in arguments))
    assert sorted(Path().rglob("*")) == before
