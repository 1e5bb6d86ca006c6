"""`unmask.train`: recipes, texts and settings as in the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import unmask
from unmask.config import read_recipe
from unmask.errors import UnmaskError
from unmask.training import Callback

SMALL = {
    "model.size": "nano", "model.hidden_size": 16, "model.layers": 1, "model.heads": 1, "data.length": 16,
    "training.steps": 2, "training.batch_size": 2, "training.validation_rows": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("one two three four five six seven. " * 60)


def test_a_text_becomes_a_run_that_opens_and_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"schedule": {"name": "polynomial", "power": 2}, "optimizer.learning_rate": 1e-5, "data.validation": 0.1}
    run = unmask.train("my.txt", {**SMALL, **options})
    assert read_recipe("runs/my/recipe.yaml").optimizer.learning_rate == 1e-5
    assert (run.path, run.steps) == (Path("runs/my"), 2)
    lm = unmask.load(run.path)
    assert (lm.config.schedule.name, lm.config.length) == ("polynomial", 16)
    assert unmask.train(Path("my.txt"), {**SMALL, **options, "training.steps": 3}, resume=True).steps == 3
    assert capsys.readouterr().out == ""


def test_a_recipe_is_applied_to_a_text_or_a_checkpoint() -> None:
    seen: list[Any] = []
    watcher = Callback()
    watcher.on_log = seen.append  # type: ignore[method-assign]
    run = unmask.train("demo", SMALL, text="my.txt", out="mine", callbacks=[watcher])
    assert seen[-1]["validation"]["bits_per_token"] == run.bound.bits_per_token
    assert read_recipe("mine/recipe.yaml").data.source.paths == ["my.txt"]
    few = {key: value for key, value in SMALL.items() if key.startswith("training.")}
    assert unmask.train("my.txt", few, checkpoint="mine", out="tuned").steps == 2
    assert unmask.train(read_recipe("mine/recipe.yaml"), out="whole").bound == run.bound


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UnmaskError, match="Did you mean 'training'"):
        unmask.train("my.txt", {"trainng.steps": 3})
    with pytest.raises(UnmaskError, match="Cannot train on both"):
        unmask.train("my.txt", text="my.txt")
    with pytest.raises(UnmaskError, match="A Recipe is complete: give it with out="):
        unmask.train(read_recipe("demo"), SMALL, out="mine")
