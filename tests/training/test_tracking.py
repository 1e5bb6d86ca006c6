"""What a run shows of itself: samples, trackers and advice, all from its log, none of them changing what is learnt."""

from __future__ import annotations

import io
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.runs import BY_LETTER, everything, short_recipe, write_markov
from unmask.config import Recipe
from unmask.errors import UnmaskError
from unmask.pipeline import load
from unmask.training import Interrupted, Progress, progress_for, train
from unmask.training.log import read_log
from unmask.training.trainer import CALLS


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_markov(tmp_path_factory.mktemp("text") / "markov.txt", 400)


USUAL: dict[str, dict[str, Any]] = {
    "data": BY_LETTER,
    "model": {"dropout": 0.1},
    "optimizer": {"learning_rate": 5e-3, "warmup": 10, "ema": 0.9},
    "training": {
        "steps": 12, "batch_size": 8, "log_every": 4, "validate_every": 4, "validation_rows": 8, "save_every": 5
    },
}  # fmt: skip


def recipe(text: Path, kind: str = "subs", **changes: dict[str, Any]) -> Recipe:
    return short_recipe(text, kind, USUAL, changes)


class Listener(Progress):
    """Remembers what it was told, and presses Ctrl-C when a step begins."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.records: list[dict[str, Any]] = []
        self.trained = self.validated = self.sampled = self.advised = self.records.append  # type: ignore[method-assign]

    def stepped(self) -> None:
        if self.stop_at is not None:
            self.stop_at -= 1
            if not self.stop_at:
                signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("objective", ["subs", "ar"])
def test_samples_are_written_and_leave_training_alone(text: Path, tmp_path: Path, objective: str) -> None:
    plain, writing, listener = tmp_path / "plain", tmp_path / "writing", Listener()
    train(recipe(text, objective), plain)
    train(recipe(text, objective, training={"sample_every": 5, "samples": 3}), writing, progress=listener)
    expected, got = everything(plain), everything(writing)
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []
    lines = [line for line in read_log(writing) if "samples" in line]
    assert [line["step"] for line in lines] == [5, 10, 12]
    assert all(len(line["samples"]) == 3 for line in lines)
    assert {len(text) for line in lines for text in line["samples"]} <= {16, 17}
    assert listener.records == read_log(writing)
    assert lines[-1]["samples"] == load(writing, device="cpu").generate(3, steps=None if objective == "ar" else CALLS)
    assert [line for line in read_log(plain) if "samples" in line] == []


def test_a_resumed_run_is_one_run_in_tensorboard(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tracked = recipe(text, training={"trackers": ["tensorboard"], "sample_every": 6})
    with pytest.raises(Interrupted):
        train(tracked, out, progress=Listener(stop_at=6))
    train(tracked, out, resume=True)
    events = EventAccumulator(str(out / "trackers"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    log = read_log(out)
    lines = [line for line in log if "loss" in line]
    for key in ("loss", "bits_per_token", "grad_norm", "learning_rate", "tokens_per_second", "memory_gib"):
        told = [(event.step, event.value) for event in events.Scalars(f"train/{key}")]
        assert told == [(line["step"], pytest.approx(line[key], rel=1e-6)) for line in lines]
    bounds = [line["validation"] for line in log if "validation" in line]
    for key in ("bits_per_token", "bits_per_token_mc_stderr", "bits_per_token_data_stderr"):
        told = [event.value for event in events.Scalars(f"validation/{key}")]
        assert told == [pytest.approx(bound[key], rel=1e-6) for bound in bounds]
    assert len(events.Tensors("samples/text_summary")) == 2


def test_a_tracked_run_that_died_before_its_first_checkpoint_begins_again(text: Path, tmp_path: Path) -> None:
    class Killed(Progress):
        def trained(self, record: dict[str, Any]) -> None:
            raise SystemExit

    tracked = recipe(text, training={"trackers": ["tensorboard"]})
    with pytest.raises(SystemExit):
        train(tracked, tmp_path / "run", progress=Killed())
    assert (tmp_path / "run" / "trackers").is_dir()
    assert train(tracked, tmp_path / "run").steps == 12


def test_a_missing_tracker_stops_before_anything_is_written(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.training.callbacks.find_spec", lambda name: None)
    with pytest.raises(UnmaskError, match="pip install 'unmask"):
        train(recipe(text, training={"trackers": ["wandb"]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


LONG = {"steps": 100, "batch_size": 16, "log_every": 4, "validate_every": 20, "validation_rows": 16, "save_every": 100}
SICK = {"optimizer": {"learning_rate": 3.0, "warmup": 10}, "training": {**LONG, "steps": 60}}


def advice(out: Path) -> list[dict[str, Any]]:
    return [line for line in read_log(out) if "advice" in line]


@pytest.mark.parametrize("objective", ["subs", "ar"])
def test_a_healthy_run_is_left_in_peace(text: Path, tmp_path: Path, objective: str) -> None:
    train(recipe(text, objective, training=LONG), tmp_path / "run")
    assert advice(tmp_path / "run") == []


def test_a_learning_rate_that_is_too_high_is_said_once_also_after_a_resumption(text: Path, tmp_path: Path) -> None:
    listener = Listener()
    train(recipe(text, **SICK), tmp_path / "whole", progress=listener)
    (said,) = advice(tmp_path / "whole")
    assert "learning rate is too high" in said["advice"]
    assert "lower optimizer.learning_rate" in said["advice"]
    assert [record for record in listener.records if "advice" in record] == [said]
    with pytest.raises(Interrupted):
        train(recipe(text, **SICK), tmp_path / "broken", progress=Listener(stop_at=said["step"] + 6))
    train(recipe(text, **SICK), tmp_path / "broken", resume=True)
    assert advice(tmp_path / "broken") == [said]


def test_learnt_ends_are_pointed_out_before_the_first_step(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("\n".join(["ab", "cde", "f"] * 50) + "\n")
    shown = io.StringIO()
    lines = progress_for(Console(file=shown), verbose=True)
    train(recipe(short, data={"policy": "supervised_eos", "tokenizer": "byte"}), tmp_path / "run", progress=lines)
    first = read_log(tmp_path / "run")[0]
    assert first["step"] == 0
    assert "81% of the learnt tokens are the EOS that fill up short texts" in first["advice"]
    assert shown.getvalue().splitlines()[0] == f"step 0: {first['advice']}"
