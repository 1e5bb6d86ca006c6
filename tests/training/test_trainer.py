"""`train` from a text file to a run folder: it learns, logs, stops cleanly and refuses what cannot work."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from tests.runs import BY_LETTER, LETTERS, StopAt, short_recipe, write_markov
from unmask.checkpoint import load_checkpoint
from unmask.config import Recipe, TrainingConfig, parse_recipe
from unmask.errors import UnmaskError
from unmask.likelihood import Bound, estimate_bound
from unmask.training import Interrupted, train
from unmask.training import trainer as loop
from unmask.training.checkpointing import all_checkpoints
from unmask.training.components import build_components
from unmask.training.distributed import Distributed, make_accelerator
from unmask.training.log import read_log
from unmask.training.metrics import Meter
from unmask.training.step import TrainStep

UNIGRAM_BITS = math.log2(len(LETTERS))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_markov(tmp_path / "markov.txt", 40)


USUAL: dict[str, dict[str, Any]] = {
    "data": BY_LETTER,
    "optimizer": {"learning_rate": 5e-3, "warmup": 10, "ema": 0.98},
    "training": {
        "steps": 6, "batch_size": 8, "log_every": 2, "validate_every": 4, "validation_rows": 16, "save_every": 3
    },
}  # fmt: skip


def recipe(text: Path, kind: str = "subs", **changes: dict[str, Any]) -> Recipe:
    return short_recipe(text, kind, USUAL, changes)


@pytest.mark.parametrize(("objective", "bits"), [("subs", 2.2), ("ar", 1.2)])
def test_a_markov_text_is_learnt(text: Path, tmp_path: Path, objective: str, bits: float) -> None:
    long = {"steps": 160, "batch_size": 32, "log_every": 40, "validate_every": 160, "save_every": 160}
    result = train(recipe(text, objective, training=long), tmp_path / "run")
    assert result.bound.bits_per_token + 4 * result.bound.error("bits_per_token") < bits < UNIGRAM_BITS - 0.5
    losses = [line["bits_per_token"] for line in read_log(tmp_path / "run") if "loss" in line]
    assert losses[-1] < losses[0] - 0.5


def test_the_run_folder_is_a_checkpoint_with_the_averaged_weights(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = train(recipe(text), out)
    loaded = load_checkpoint(out)
    assert loaded.config.length == 16
    assert loaded.config.protocol["data"]["tokenizer"]["alphabet"] == LETTERS
    assert loaded.tokenizer.mask_token_id == loaded.model.config.mask_token_id == 8
    assert result.path == out
    assert result.steps == 6
    estimator = loaded.config.objective.estimators()[result.bound.estimator]
    rows = build_components(recipe(text), Distributed(make_accelerator(TrainingConfig(), clip=1.0))).validation.spread(
        16
    )
    again = estimate_bound(
        loaded.model, estimator, loaded.config.schedule, rows, name=result.bound.estimator, offsets=8
    )
    assert again == result.bound
    raw = load_checkpoint(out).model
    raw.load_state_dict(load_file(out / "latest" / "state" / "model.safetensors"))
    assert estimate_bound(raw, estimator, loaded.config.schedule, rows).nats != result.bound.nats


def test_every_line_of_the_log_is_there(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = train(recipe(text, training={"steps": 5}), out)
    lines = read_log(out)
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 5]
    assert [line["step"] for line in lines if "validation" in line] == [4, 5]
    first = lines[0]
    assert first["bits_per_token"] == pytest.approx(first["loss"] / math.log(2))
    assert first["learning_rate"] == pytest.approx(5e-3 * 2 / 10)
    assert len(first["cross_entropy"]) == 10
    assert first["grad_norm"] > 0
    assert first["tokens_per_second"] > 0
    assert lines[-1]["validation"]["bits_per_token"] == result.bound.bits_per_token
    assert lines[-1]["validation"]["bits_per_token_mc_stderr"] > 0
    assert parse_recipe(yaml.safe_load((out / "recipe.yaml").read_text())) == recipe(text, training={"steps": 5})
    assert json.dumps(result.as_dict(), allow_nan=False)


def test_old_checkpoints_go(text: Path, tmp_path: Path) -> None:
    train(recipe(text, training={"save_every": 1, "keep": 2, "keep_best": 0}), tmp_path / "run")
    assert [path.name for path in all_checkpoints(tmp_path / "run")] == ["step-00000005", "step-00000006"]


def test_the_best_checkpoints_stay(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation says 5, 3, 4, 2, 4, 6 bits after steps 1 to 6."""
    out, said = tmp_path / "run", iter([5.0, 3.0, 4.0, 2.0, 4.0, 6.0])

    def told(*_: Any) -> Bound:
        return replace(measured, nats=next(said) * measured.tokens * math.log(2))

    measured = train(recipe(text), tmp_path / "other").bound
    monkeypatch.setattr(loop, "measure", told)
    train(recipe(text, training={"save_every": 100, "validate_every": 1, "keep": 1, "keep_best": 2}), out)
    assert [path.name for path in all_checkpoints(out)] == ["step-00000002", "step-00000004", "step-00000006"]
    assert (out / "best").resolve().name == "step-00000004"
    assert (out / "latest").resolve().name == "step-00000006"
    assert load_checkpoint(out / "best").config.length == 16


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": {"name": "d3pm", "zero_masking": False}},
        {"data": {"policy": "padded"}, "training": {"accumulation": 2}},
        {"model": {"conditioned": True}, "optimizer": {"ema": 0.0}, "training": {"precision": "bf16"}},
    ],
)
def test_other_objectives_policies_and_precisions_run(text: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    result = train(recipe(text, **changes), tmp_path / "run")
    assert math.isfinite(result.bound.nats)
    assert load_checkpoint(tmp_path / "run").config.objective.name == changes.get("objective", {"name": "subs"})["name"]


def test_ctrl_c_saves_and_tells_how_to_go_on(text: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"step 2; go on with: unmask train .*recipe.yaml --out .* --resume") as stop:
        train(recipe(text), tmp_path / "run", progress=StopAt(2))
    assert stop.value.step == 2
    assert [path.name for path in all_checkpoints(tmp_path / "run")] == ["step-00000002"]
    assert signal.getsignal(signal.SIGINT) is before
    assert train(recipe(text), tmp_path / "run", resume=True).steps == 6


def test_a_loss_that_is_not_finite_stops_the_run(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = TrainStep.step

    def poisoned(self: TrainStep, micro_batches: Any, number: int) -> None:
        if number == 4:
            with torch.no_grad():
                next(iter(self.parameters.values())).fill_(math.nan)
        step(self, micro_batches, number)

    monkeypatch.setattr(TrainStep, "step", poisoned)
    with pytest.raises(
        UnmaskError,
        match=r"The loss of step 5 is not finite .samples 32 .row \d+., 33.*; loss nan, gradient norm nan after "
        r"0\.\d+ the step before; the weights are ruined too.*step-00000003'; train again",
    ):
        train(recipe(text, training={"keep_best": 0}), tmp_path / "run")
    assert [path.name for path in all_checkpoints(tmp_path / "run")] == ["step-00000003"]


def test_a_gradient_that_is_not_finite_is_not_taken_for_a_loss(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = TrainStep.gradients

    def spoilt(self: TrainStep, micro_batches: Any) -> Tensor:
        loss = gradients(self, micro_batches)
        next(iter(self.parameters.values())).grad.fill_(math.nan)
        return loss

    monkeypatch.setattr(TrainStep, "gradients", spoilt)
    with pytest.raises(UnmaskError, match=r"The gradient of step 1 is not finite .samples 0 to 7; loss \d+\.\d+, grad"):
        train(recipe(text), tmp_path / "run")


def test_a_step_that_was_only_reported_wrongly_leaves_the_weights(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_step = Meter.end_step

    def lie(self: Meter, number: int, loss: Tensor, grad_norm: Tensor) -> None:
        end_step(self, number, loss * math.nan if number == 5 else loss, grad_norm)

    monkeypatch.setattr(Meter, "end_step", lie)
    with pytest.raises(UnmaskError, match=r"step 5 is not finite .*the weights are finite still"):
        train(recipe(text), tmp_path / "run")


def test_a_folder_with_something_in_it_is_refused(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(UnmaskError, match=r"run' exists and is not empty; choose another folder, or add --resume"):
        train(recipe(text), out)
    with pytest.raises(UnmaskError, match="no checkpoint to resume from"):
        train(recipe(text), out, resume=True)
    assert [path.name for path in out.iterdir()] == ["mine"]


@pytest.mark.parametrize(("objective", "model"), [("ar", "dit"), ("subs", "causal"), ("d3pm", "causal")])
def test_a_network_of_the_wrong_direction_is_refused(text: Path, tmp_path: Path, objective: str, model: str) -> None:
    wrong = recipe(text, objective, model={"name": model})
    with pytest.raises(UnmaskError, match=f"model '{model}' reads .*objective '{objective}' needs"):
        train(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()
