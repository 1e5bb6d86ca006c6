"""`train` from a text file to a run folder: it learns, logs, samples, advises, stops cleanly and refuses bad input."""

from __future__ import annotations

import io
import json
import math
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from tests.runs import BY_LETTER, LETTERS, StopAt, assert_same_tensors, short_recipe, write_markov
from unmask.checkpoint import load_checkpoint
from unmask.config import Recipe, TrainingConfig, parse_recipe
from unmask.errors import UnmaskError
from unmask.evaluation.perplexity import evaluation_rows
from unmask.likelihood import Bound, estimate_bound
from unmask.pipeline import load
from unmask.training import Callback, Interrupted, make_progress, train
from unmask.training import trainer as loop
from unmask.training.callbacks import read_log
from unmask.training.checkpointing import all_checkpoints, read_trainer_state
from unmask.training.distributed import Distributed, make_accelerator
from unmask.training.step import TrainStep
from unmask.training.trainer import build_components
from unmask.training.validation import SAMPLE_STEPS

UNIGRAM_BITS = math.log2(len(LETTERS))
USUAL: dict[str, dict[str, Any]] = {
    "data": BY_LETTER,
    "optimizer": {"learning_rate": 5e-3, "warmup": 10, "ema": 0.98},
    "training": {
        "steps": 6, "batch_size": 8, "log_every": 2, "validate_every": 4, "validation_rows": 16, "save_every": 3
    },
}  # fmt: skip
LONG = {"steps": 100, "batch_size": 16, "log_every": 4, "validate_every": 20, "validation_rows": 16, "save_every": 100}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_markov(tmp_path_factory.mktemp("text") / "markov.txt", 400)


def recipe(text: Path, kind: str = "subs", **changes: dict[str, Any]) -> Recipe:
    return short_recipe(text, kind, USUAL, changes)


def steps_of(out: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in all_checkpoints(out)]


def advice(out: Path) -> list[dict[str, Any]]:
    return [line for line in read_log(out) if "advice" in line]


class Recording(Callback):
    """Remembers all records."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.on_log = self.records.append  # type: ignore[method-assign]


@pytest.mark.parametrize(("objective", "bits"), [("subs", 2.2), ("ar", 1.2)])
def test_a_markov_text_is_learned_without_advice(text: Path, tmp_path: Path, objective: str, bits: float) -> None:
    long = {**LONG, "steps": 300, "batch_size": 32, "log_every": 10, "validate_every": 100, "validation_rows": 64}
    result = train(recipe(text, objective, training=long), tmp_path / "run")
    assert result.bound.bits_per_token + 4 * result.bound.error("bits_per_token") < bits < UNIGRAM_BITS - 0.5
    losses = [line["bits_per_token"] for line in read_log(tmp_path / "run") if "loss" in line]
    assert losses[-1] < losses[0] - 0.5
    assert advice(tmp_path / "run") == []


def test_the_run_folder_has_a_checkpoint_with_the_ema_weights_and_a_log(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    described = recipe(text, training={"steps": 5})
    result = train(described, out)
    assert (result.path, result.steps) == (out, 5)
    assert json.dumps(result.as_dict(), allow_nan=False)
    assert parse_recipe(yaml.safe_load((out / "recipe.yaml").read_text())) == described

    lines = read_log(out)
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 5]
    assert [line["step"] for line in lines if "validation" in line] == [4, 5]
    first = lines[0]
    assert first["bits_per_token"] == pytest.approx(first["loss"] / math.log(2))
    assert first["learning_rate"] == pytest.approx(5e-3 * 2 / 10)
    assert len(first["cross_entropy"]) == 10
    assert min(first["grad_norm"], first["tokens_per_second"]) > 0
    assert lines[-1]["validation"]["bits_per_token"] == result.bound.bits_per_token
    assert lines[-1]["validation"]["bits_per_token_mc_stderr"] > 0

    loaded = load_checkpoint(out)
    assert loaded.config.length == 16
    assert loaded.config.protocol["data"]["tokenizer"]["alphabet"] == LETTERS
    assert loaded.tokenizer.mask_token_id == loaded.model.config.mask_token_id == 8
    name, schedule = result.bound.estimator, loaded.config.schedule
    estimator = loaded.config.objective.estimators()[name]
    distributed = Distributed(make_accelerator(TrainingConfig(), clip=1.0))
    rows = build_components(described, distributed).validation.spread(16)
    assert estimate_bound(loaded.model, estimator, schedule, rows, name=name, offsets=8) == result.bound
    loaded.model.load_state_dict(load_file(out / "latest" / "state" / "model.safetensors"))
    assert estimate_bound(loaded.model, estimator, schedule, rows).nats != result.bound.nats


def test_the_newest_and_the_best_checkpoints_are_kept(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, bits = tmp_path / "run", iter([5.0, 3.0, 4.0, 2.0, 4.0, 6.0])
    measured = train(recipe(text, training={"save_every": 1, "keep": 2, "keep_best": 0}), tmp_path / "newest").bound
    assert steps_of(tmp_path / "newest") == [5, 6]
    states = [read_trainer_state(path) for path in all_checkpoints(tmp_path / "newest")]
    assert [state.bits_per_token for state in states] == [None, measured.bits_per_token]

    def measure(*_: Any) -> Bound:
        return replace(measured, nats=next(bits) * measured.tokens * math.log(2))

    monkeypatch.setattr(loop, "measure_bound", measure)
    train(recipe(text, training={"save_every": 100, "validate_every": 1, "keep": 1, "keep_best": 2}), out)
    assert steps_of(out) == [2, 4, 6]
    assert (out / "best").resolve().name == "step-00000004"
    assert (out / "latest").resolve().name == "step-00000006"
    assert load_checkpoint(out / "best").config.length == 16


def test_a_mixture_trains_resumes_and_is_evaluated(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("".join(f"{name * 9} {number:03}\n" for number in range(120)))

    def mixture(weights: tuple[int, int], steps: int) -> Recipe:
        parts = [
            {"source": {"name": "text", "paths": str(tmp_path / name), "separator": "line"}, "weight": weight}
            for name, weight in zip("ab", weights, strict=True)
        ]
        data = {"source": {"name": "mixture", "parts": parts}, "length": 16, "validation": 0.2}
        model = {"name": "dit", "hidden_size": 16, "layers": 1, "heads": 2}
        return parse_recipe({"data": data, "model": model, "training": {"steps": steps, "batch_size": 8}})

    train(mixture((3, 1), 2), tmp_path / "run")
    result = train(mixture((3, 1), 3), tmp_path / "run", resume=True)
    assert result.steps == 3
    assert result.bound.tokens > 0
    rows = evaluation_rows(load(tmp_path / "run", device="cpu"))
    first = Counter(chr(letter) for letter in rows[:].input_ids[:, 0] if chr(letter) in "ab")
    assert min(first["a"], first["b"]) > 3
    assert rows.document_bytes.sum() == 13 * rows.documents
    with pytest.raises(UnmaskError, match=r"data\.source\.parts"):
        train(mixture((1, 1), 4), tmp_path / "run", resume=True)


@pytest.mark.parametrize("objective", ["subs", "ar"])
def test_samples_are_logged_and_do_not_change_training(text: Path, tmp_path: Path, objective: str) -> None:
    plain, sampled, recording = tmp_path / "plain", tmp_path / "sampled", Recording()
    dropout = {"dropout": 0.1}
    train(recipe(text, objective, model=dropout), plain)
    sampling = recipe(text, objective, model=dropout, training={"sample_every": 4, "samples": 3})
    train(sampling, sampled, callbacks=[recording])
    assert_same_tensors(plain, sampled)
    assert recording.records == read_log(sampled)
    lines = [line for line in read_log(sampled) if "samples" in line]
    assert [line["step"] for line in lines] == [4, 6]
    assert {len(line["samples"]) for line in lines} == {3}
    assert {len(text) for line in lines for text in line["samples"]} <= {16, 17}
    steps = None if objective == "ar" else SAMPLE_STEPS
    assert lines[-1]["samples"] == load(sampled, device="cpu").generate(3, steps=steps)
    assert not any("samples" in line for line in read_log(plain))


def test_a_run_that_starts_again_and_resumes_is_one_run_in_tensorboard(text: Path, tmp_path: Path) -> None:
    class Killed(Callback):
        def on_log(self, record: dict[str, Any]) -> None:
            raise SystemExit

    out = tmp_path / "run"
    tracked = recipe(text, training={"trackers": ["tensorboard"], "sample_every": 3})
    with pytest.raises(SystemExit):
        train(tracked, out, callbacks=[Killed()])
    assert (out / "trackers").is_dir()
    with pytest.raises(Interrupted):
        train(tracked, out, callbacks=[StopAt(3)])
    train(tracked, out, resume=True)
    events = EventAccumulator(str(out / "trackers"), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    log = read_log(out)
    for key in ("loss", "grad_norm", "learning_rate", "tokens_per_second", "memory_gib"):
        told = [(event.step, event.value) for event in events.Scalars(f"train/{key}")]
        assert told == [(line["step"], pytest.approx(line[key], rel=1e-6)) for line in log if "loss" in line]
    for key in ("bits_per_token", "bits_per_token_mc_stderr", "bits_per_token_data_stderr"):
        told = [event.value for event in events.Scalars(f"validation/{key}")]
        assert told == [pytest.approx(line["validation"][key], rel=1e-6) for line in log if "validation" in line]
    assert len(events.Tensors("samples/text_summary")) == 2


def test_a_high_learning_rate_is_advised_against_once_also_after_a_resume(text: Path, tmp_path: Path) -> None:
    recording = Recording()
    high = recipe(text, optimizer={"learning_rate": 3.0}, training={**LONG, "steps": 60})
    train(high, tmp_path / "whole", callbacks=[recording])
    (said,) = advice(tmp_path / "whole")
    assert "learning rate is too high" in said["advice"]
    assert "lower optimizer.learning_rate" in said["advice"]
    assert [record for record in recording.records if "advice" in record] == [said]
    with pytest.raises(Interrupted):
        train(high, tmp_path / "broken", callbacks=[StopAt(said["step"] + 6)])
    train(high, tmp_path / "broken", resume=True)
    assert advice(tmp_path / "broken") == [said]


def test_advice_on_data_comes_before_the_first_step(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("\n".join(["ab", "cde", "f"] * 50) + "\n")
    shown = io.StringIO()
    lines = make_progress(Console(file=shown), verbose=True)
    described = recipe(short, data={"policy": "supervised_eos", "tokenizer": "byte"})
    result = train(described, tmp_path / "run", callbacks=[lines])
    first, *records = read_log(tmp_path / "run")
    assert first["step"] == 0
    assert "81% of the learned tokens are EOS that fill up short texts" in first["advice"]
    assert shown.getvalue().splitlines()[0] == f"step 0: {first['advice']}"
    assert result.bound.tokens < result.bound.nats, "EOS that fill up the rows are learned, but no tokens"
    for record in records:
        said = record.get("validation", record)
        assert said["denominator"] == "text tokens"
        assert said["bits_per_token"] > 16, "a new network is near a uniform guess for each of 5 positions per token"


def test_augmented_dna_is_learned_on_both_strands(tmp_path: Path) -> None:
    """The text has no T; a network that also reads the opposite strand expects A and T alike."""
    (tmp_path / "a.txt").write_text("A" * 2000)
    bits = {}
    for probability in (0.0, 0.5):
        values = recipe(tmp_path / "a.txt", training={"steps": 30}).model_dump(mode="json")
        values["model"] = {"name": "bimamba", "hidden_size": 16, "layers": 1}
        values["data"] |= {"tokenizer": "dna", "reverse_complement": probability}
        train(parse_recipe(values), tmp_path / str(probability))
        bits[probability] = load(tmp_path / str(probability)).score("TTTTTTTT").bits_per_char
    assert bits[0.5] < 1.5 < bits[0.0]


def test_ctrl_c_saves_and_tells_how_to_resume(text: Path, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"step 2; resume with: unmask train .*recipe.yaml --out .* --resume") as stop:
        train(recipe(text), tmp_path / "run", callbacks=[StopAt(2)])
    assert stop.value.step == 2
    assert steps_of(tmp_path / "run") == [2]
    assert signal.getsignal(signal.SIGINT) is before
    assert train(recipe(text), tmp_path / "run", resume=True).steps == 6


def test_a_non_finite_loss_stops_the_run(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = TrainStep.step

    def poisoned(self: TrainStep, micro_batches: Any, number: int) -> None:
        if number == 4:
            with torch.no_grad():
                next(iter(self.parameters.values())).fill_(math.nan)
        step(self, micro_batches, number)

    monkeypatch.setattr(TrainStep, "step", poisoned)
    message = (
        r"The loss of step 5 is not finite .samples 32 .row \d+., 33.*; loss nan, gradient norm nan, before 0\.\d+; "
        r"the weights are not finite either.*step-00000003; train again"
    )
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text, training={"keep_best": 0}), tmp_path / "run")
    assert steps_of(tmp_path / "run") == [3]


def test_a_non_finite_gradient_is_told_from_a_loss(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = TrainStep.gradients

    def poisoned(self: TrainStep, micro_batches: Any) -> Tensor:
        loss = gradients(self, micro_batches)
        next(iter(self.parameters.values())).grad.fill_(math.nan)
        return loss

    monkeypatch.setattr(TrainStep, "gradients", poisoned)
    with pytest.raises(UnmaskError, match=r"The gradient of step 1 is not finite .samples 0 to 7; loss \d+\.\d+, grad"):
        train(recipe(text), tmp_path / "run")


def test_a_folder_in_use_is_refused(text: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UnmaskError, match=r"' exists and is not empty; choose another folder, or add --resume"):
        train(recipe(text), tmp_path)
    with pytest.raises(UnmaskError, match="no checkpoint to resume from"):
        train(recipe(text), tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("objective", "changes", "message"),
    [
        ("ar", {"model": {"name": "dit"}}, "model 'dit' reads both ways, and the objective 'ar' needs left to right"),
        ("subs", {"model": {"name": "causal"}}, "model 'causal' reads left to right, and the objective 'subs' needs"),
        ("d3pm", {"model": {"name": "causal"}}, "choose another objective, or model.name=dit"),
        ("subs", {"training": {"trackers": ["wandb"]}}, "pip install 'unmask"),
        (
            "subs",
            {"model": {"hidden_size": 8 * 10**9}},
            "The network does not fit into the memory of this machine; lower",
        ),
        ("subs", {"data": {"reverse_complement": 0.5}}, "the tokens A, C, G and T, and the one here has 0 of them"),
    ],
)
def test_bad_recipes_are_refused_before_anything_is_written(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objective: str, changes: Any, message: str
) -> None:
    monkeypatch.setattr("unmask.training.callbacks.find_spec", lambda name: None)
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text, objective, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
