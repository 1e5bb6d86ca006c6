"""Fine-tuning: a run that begins with a checkpoint's weights, whole or by a LoRA, and can be stopped and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from tests.conftest import LENGTH, make_checkpoint
from tests.runs import StopAt, assert_same_tensors, write_cats
from unmask.checkpoint import CheckpointConfig, load_checkpoint, save_checkpoint
from unmask.config import Recipe, parse_recipe, read_recipe
from unmask.convert import convert, export
from unmask.errors import UnmaskError
from unmask.models import CheckpointSpec
from unmask.training import Interrupted, train
from unmask.training.callbacks import read_log
from unmask.training.fine_tuning import recipe_from

SHORT = ["training.steps=6", "training.batch_size=4", "training.validation_rows=4", "training.save_every=2"]
STILL = [*SHORT, "training.steps=1", "optimizer.learning_rate=1e-12"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cats(tmp_path_factory.mktemp("text") / "my.txt", 120)


def recipe(text: Path, folder: Path, *overrides: str) -> Recipe:
    return recipe_from(str(text), str(folder), [*SHORT, *overrides])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_what_belongs_to_the_network_is_the_checkpoints(text: Path, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "base", policy="supervised_eos")
    described = recipe(text, folder, "schedule=cosine", "optimizer.learning_rate=0.5")
    assert (described.model.name, described.model.model_dump(exclude_defaults=True)) == (
        "checkpoint",
        {"path": str(folder)},
    )
    assert described.data.tokenizer.model_dump() == {"name": "huggingface", "path": str(folder)}
    assert described.data.policy.name == "supervised_eos"
    assert described.data.length == LENGTH
    assert described.objective.name == "subs"
    assert described.schedule.name == "cosine"
    assert described.optimizer.learning_rate == 0.5
    assert recipe(text, folder).optimizer == read_recipe("finetune").optimizer
    assert recipe_from("demo", str(folder)).optimizer == read_recipe("demo").optimizer
    assert described.data.source.paths == [str(text)]


@pytest.mark.parametrize("kind", ["dit", "causal"])
def test_training_begins_with_the_checkpoints_weights(text: Path, tmp_path: Path, kind: str) -> None:
    folder = make_checkpoint(tmp_path / "base", model=kind)
    train(recipe_from(str(text), str(folder), STILL), tmp_path / "still")
    same = weights(tmp_path / "still")
    assert all(torch.allclose(same[name], tensor, atol=1e-6) for name, tensor in weights(folder).items())
    train(recipe(text, folder, "optimizer.learning_rate=0.01"), tmp_path / "moved")
    opener = AutoModelForCausalLM if kind == "causal" else AutoModelForMaskedLM
    moved = opener.from_pretrained(tmp_path / "moved").state_dict()
    assert not any(torch.allclose(moved[name], tensor, atol=1e-3) for name, tensor in weights(folder).items())


def test_a_run_is_continued_from_its_newest_checkpoint(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    train(recipe(text, mdlm_folder), tmp_path / "first")
    described = recipe(text, tmp_path / "first")
    assert described.model.path == str(tmp_path / "first" / "checkpoints" / "step-00000006")
    train(described, tmp_path / "second")
    assert load_checkpoint(tmp_path / "second").tokenizer.mask_token_id == 257


@pytest.mark.parametrize(
    "overrides",
    [["model.dropout=0.3"], ["model.lora.rank=2", "model.lora.dropout=0.3", "optimizer.learning_rate=0.01"]],
)
def test_stop_and_resume_equals_an_unbroken_run(
    text: Path, mdlm_folder: Path, tmp_path: Path, overrides: list[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(recipe(text, mdlm_folder, *overrides), whole)
    with pytest.raises(Interrupted):
        train(recipe(text, mdlm_folder, *overrides), broken, callbacks=[StopAt(3)])
    torch.rand(100)
    train(recipe(text, mdlm_folder, *overrides), broken, resume=True)
    assert_same_tensors(whole, broken)


@pytest.mark.parametrize(("length", "longest"), [(LENGTH + 16, LENGTH + 16), (16, LENGTH)])
def test_rows_may_be_longer_or_shorter(
    text: Path, mdlm_folder: Path, tmp_path: Path, length: int, longest: int
) -> None:
    train(recipe_from(str(text), str(mdlm_folder), [*STILL, f"data.length={length}"]), tmp_path / "run")
    loaded = load_checkpoint(tmp_path / "run")
    assert loaded.config.length == length
    assert loaded.model.config.max_length == longest


def test_dropout_and_objective_may_be_others(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    other = "objective={name: d3pm, steps: 4, zero_masking: false}"
    train(recipe_from(str(text), str(mdlm_folder), [*STILL, "model.dropout=0.4", other]), tmp_path / "run")
    config = load_checkpoint(tmp_path / "run").model.config
    assert config.dropout == 0.4
    assert config.mask_logit


def test_a_lora_learns_beside_the_weights_and_is_saved_within_them(
    text: Path, mdlm_folder: Path, tmp_path: Path
) -> None:
    adapted = recipe(
        text, mdlm_folder, "model.lora={rank: 2, targets: [attn_qkv, mlp.0]}", "optimizer.learning_rate=0.05"
    )
    result = train(adapted, tmp_path / "run")
    state = load_file(tmp_path / "run" / "latest" / "state" / "model.safetensors")
    assert sum(tensor.numel() for tensor in state.values()) == 2 * 2 * ((32 + 96) + (32 + 128))
    average = load_file(tmp_path / "run" / "latest" / "state" / "ema.safetensors")
    assert average.keys() == state.keys()
    before, after = weights(mdlm_folder), weights(tmp_path / "run")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"blocks.{block}.{name}.weight" for block in range(2) for name in ("attn_qkv", "mlp.0")}
    name = "blocks.0.attn_qkv"
    factors = average[f"{name}.lora_B.default.weight"] @ average[f"{name}.lora_A.default.weight"]
    torch.testing.assert_close(after[f"{name}.weight"], before[f"{name}.weight"] + 8.0 * factors)
    opened = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    assert opened.config.max_length == LENGTH
    assert result.steps == 6
    assert parse_recipe(adapted.model_dump(mode="json")) == adapted


def test_muon_leaves_a_lora_to_adamw_and_says_so(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    train(recipe(text, mdlm_folder, "model.lora.rank=2", "optimizer=muon"), tmp_path / "run")
    said = read_log(tmp_path / "run")[0]["advice"]
    assert "no matrix inside a block is trained" in said
    assert "using AdamW" in said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.size=tiny", "'model.size=tiny' does not fit .* brings its network along; leave it out, or train anew"),
        ("model={name: dit}", "brings its network along"),
        ("data.tokenizer=byte", "'data.tokenizer=byte' does not fit .* brings its tokenizer along"),
        ("data.tokenizer.name=byte", "brings its tokenizer along"),
        ("model.lora.rnak=2", "lora.rnak"),
        ("objective=ar", "model 'checkpoint' reads both ways, and the objective 'ar' needs left to right; choose"),
    ],
)
def test_what_cannot_fit_is_refused(text: Path, mdlm_folder: Path, tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(UnmaskError, match=said):
        train(recipe(text, mdlm_folder, override), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_without_a_tokenizer_asks_for_the_right_one(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    loaded = load_checkpoint(mdlm_folder)
    save_checkpoint(tmp_path / "bare", loaded.model, None, CheckpointConfig(length=LENGTH))
    with pytest.raises(UnmaskError, match=r"bare' has no tokenizer; name the one .* data\.tokenizer='\{name: hugg"):
        recipe(text, tmp_path / "bare")
    wrong = recipe(text, tmp_path / "bare", "data.tokenizer={name: bpe, vocab_size: 259}")
    with pytest.raises(UnmaskError, match=r"has 259 tokens with the mask at 258, but .* has 258 with the mask at 257"):
        train(wrong, tmp_path / "run")
    train(recipe(text, tmp_path / "bare", "data.tokenizer=byte"), tmp_path / "run")


def test_converted_weights_are_fine_tuned(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    export(mdlm_folder, tmp_path / "published.safetensors")
    convert(tmp_path / "published.safetensors", tmp_path / "converted", tokenizer="byte", length=LENGTH, heads=2)
    result = train(recipe(text, tmp_path / "converted"), tmp_path / "run")
    assert result.bound.nats > 0


def test_weights_that_were_saved_in_bf16_are_trained_in_float32(mdlm_folder: Path, tmp_path: Path) -> None:
    loaded = load_checkpoint(mdlm_folder)
    save_checkpoint(tmp_path / "half", loaded.model.to(torch.bfloat16), loaded.tokenizer, loaded.config)
    network = CheckpointSpec(path=str(tmp_path / "half")).build(258, 257, LENGTH)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_a_checkpoint_that_is_not_there_is_named(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=r"There is no checkpoint at '.*nowhere'"):
        recipe(text, tmp_path / "nowhere")
    gone = recipe(text, mdlm_folder).model_dump(mode="json")
    gone["model"]["path"] = str(tmp_path / "gone")
    with pytest.raises(UnmaskError, match=r"There is no checkpoint at '.*gone'"):
        train(parse_recipe(gone), tmp_path / "run")


def test_what_is_no_checkpoint_is_not_asked_for_its_tokenizer(text: Path) -> None:
    for other in (text, text.parent):
        with pytest.raises(UnmaskError, match=f"'{other}' is not a checkpoint"):
            recipe_from(str(text), str(other))


def test_the_command_line_goes_on_from_a_checkpoint(run, text: Path, ar_folder: Path, tmp_path: Path) -> None:
    begun = ("train", text, "--from", ar_folder)
    code, out, _ = run(*begun, "--out", tmp_path / "run", "--json", *SHORT)
    assert code == 0
    assert json.loads(out)["steps"] == 6
    assert load_checkpoint(tmp_path / "run").config.objective.name == "ar"
    code, _, err = run(*begun, "model.size=small")
    assert code == 2
    assert "brings its network along" in err
