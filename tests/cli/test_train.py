"""`unmask train`: from a text file to a checkpoint, and messages for bad recipes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

TEXT = "the cat sat on the mat. " * 200
SMALL = ["model.hidden_size=16", "model.layers=1", "model.heads=1", "data.length=32", "training.batch_size=4"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text(TEXT)
    return tmp_path


def test_a_text_file_becomes_a_checkpoint(reported, printed, run, refused, folder):
    out = printed("train", "my.txt", "training.steps=3", *SMALL)
    assert "±" in out
    assert "Next: unmask sample runs/my" in out
    assert run("sample", "runs/my", "--length", 8, "--json")[0] == 0
    assert run("eval", "runs/my", "--json")[0] == 0
    assert "--resume" in refused("train", "my.txt", "training.steps=3", *SMALL)
    assert reported("train", "my.txt", "training.steps=5", *SMALL, "--resume")["steps"] == 5
    assert "--resume takes no value or 'auto', got 'now'" in refused("train", "my.txt", "--resume=now")


def test_standard_input_is_trained_on_but_not_evaluated(printed, refused, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    printed("train", "-", "training.steps=2", *SMALL)
    message = refused("eval", "runs/stdin")
    assert "standard input" in message
    assert "--data" in message


def test_a_recipe_may_be_followed_by_a_text(printed, refused, folder):
    printed("train", "demo", "my.txt", "training.steps=2", *SMALL, "--out", "run", "--json")
    assert "my.txt" in Path("run/recipe.yaml").read_text()
    Path("other.txt").write_text(TEXT)
    assert "Cannot train on both 'my.txt' and 'other.txt'" in refused("train", "my.txt", "other.txt")


def test_skipped_files_are_counted(run, folder):
    Path("books").mkdir()
    Path("books/a.txt").write_text(TEXT)
    for name in ("b.pdf", "c.pdf", "README"):
        Path("books", name).write_text("no text")
    code, _, err = run("train", "books", "training.steps=2", *SMALL)
    assert code == 0, err
    assert "Skipped files: " in err
    assert "2 .pdf" in err
    assert "1 without suffix" in err


def test_a_batch_that_does_not_fit_names_one_that_does(printed, refused, folder, monkeypatch):
    """With memory for three sequences, ten of them need four micro-batches."""
    import torch

    from unmask.models import DiT

    hidden = DiT.hidden

    def limited(self, input_ids, *args, **kwargs):
        if len(input_ids) > 3 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return hidden(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(DiT, "hidden", limited)
    command = ("train", "my.txt", "training.steps=2", *SMALL, "training.batch_size=10")
    message = refused(*command)
    assert "10 sequences of 32 tokens" in message
    assert "training.accumulation=4" in message
    printed(*command, "training.accumulation=4")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.txt",), "missing.txt"),
        (("dmeo",), "Did you mean 'demo'"),
        (("demo", "trainng.steps=3"), "Did you mean 'training'"),
        (("demo", "training.stepz=3"), "Did you mean 'steps'"),
        (("demo", "schedule=cosin"), "Did you mean 'cosine'"),
        (("demo", "training.steps=many"), "training.steps"),
        (("demo", "objective=ar"), "model.name=causal"),
        (("demo", "training=3"), "training must be a mapping, got 3."),
        (("demo", f"training.seed={2**63}"), "got 9223372036854775808"),
        (("demo", "expect.bits_per_byte=.nan"), "expect.bits_per_byte must be a finite number, got nan"),
        (("demo", "optimizer.betas=[0.9]"), "betas.1 is missing, got [0.9]."),
        (("demo", "data.source={name: mixture, parts: [{source: txet}]}"), "Did you mean 'text'?"),
        (("demo", "--from", "{mdlm}", "model.lora.targets=[]"), "targets must have at least 1 item, got []."),
        (("demo", "--from", "{mdlm}", "objective=ar"), "choose another objective"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(refused, mdlm_folder, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    arguments = [mdlm_folder if one == "{mdlm}" else one for one in arguments]
    assert words in refused("train", *arguments)
    assert list(tmp_path.iterdir()) == []
