"""Fine-tuning: a run starts from a checkpoint's weights, fully or with LoRA, and can be stopped and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from tests.conftest import LENGTH, make_checkpoint
from tests.encoders import make_encoder
from tests.runs import check_resume, write_cats
from unmask.checkpoint import CheckpointConfig, load_checkpoint, save_checkpoint
from unmask.config import Recipe, parse_recipe, read_recipe
from unmask.convert import convert, export
from unmask.errors import UnmaskError
from unmask.models import CheckpointSpec
from unmask.training import train
from unmask.training.callbacks import read_log
from unmask.training.run import CAUSAL_LM_RATE, ENCODER_RATE, recipe_from

SHORT = ["training.steps=6", "training.batch_size=4", "training.validation_rows=4", "training.save_every=2"]
STILL = [*SHORT, "training.steps=1", "optimizer.learning_rate=1e-12"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cats(tmp_path_factory.mktemp("text") / "my.txt", 120)


def recipe(text: Path, folder: Path, *overrides: str) -> Recipe:
    return recipe_from(str(text), str(folder), [*SHORT, *overrides])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_settings_of_the_network_are_the_checkpoints(text: Path, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "base", policy="supervised_eos")
    described = recipe(text, folder, "schedule=cosine", "optimizer.learning_rate=0.5")
    assert described.model.name == "checkpoint"
    assert described.model.model_dump(exclude_defaults=True) == {"path": str(folder)}
    assert described.data.tokenizer.model_dump() == {"name": "huggingface", "path": str(folder)}
    assert (described.data.policy.name, described.data.length) == ("supervised_eos", LENGTH)
    assert (described.objective.name, described.schedule.name) == ("subs", "cosine")
    assert described.optimizer.learning_rate == 0.5
    assert described.data.source.paths == [str(text)]
    assert recipe(text, folder).optimizer == read_recipe("finetune").optimizer
    assert recipe_from("demo", str(folder)).optimizer == read_recipe("demo").optimizer


def test_published_networks_have_a_lower_learning_rate(text: Path, tmp_path: Path) -> None:
    make_encoder(tmp_path / "bert")
    assert recipe(text, tmp_path / "bert").optimizer.learning_rate == ENCODER_RATE
    assert recipe(text, tmp_path / "bert", "optimizer.learning_rate=0.5").optimizer.learning_rate == 0.5
    usual = read_recipe("finetune").optimizer
    assert recipe(text, tmp_path / "bert", "model.lora.rank=2").optimizer == usual
    assert (
        recipe_from("demo", str(tmp_path / "bert"), ["data.policy=packed"]).optimizer == read_recipe("demo").optimizer
    )
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text('{"model_type": "gpt2", "n_positions": 64}')
    (tmp_path / "gpt2" / "tokenizer.json").touch()
    assert recipe(text, tmp_path / "gpt2").optimizer.learning_rate == CAUSAL_LM_RATE


@pytest.mark.parametrize("kind", ["dit", "causal"])
def test_training_starts_from_the_checkpoints_weights(text: Path, tmp_path: Path, kind: str) -> None:
    folder = make_checkpoint(tmp_path / "base", model=kind)
    train(recipe_from(str(text), str(folder), STILL), tmp_path / "still")
    same = weights(tmp_path / "still")
    assert all(torch.allclose(same[name], tensor, atol=1e-6) for name, tensor in weights(folder).items())
    train(recipe(text, folder, "optimizer.learning_rate=0.01"), tmp_path / "moved")
    auto_class = AutoModelForCausalLM if kind == "causal" else AutoModelForMaskedLM
    moved = auto_class.from_pretrained(tmp_path / "moved").state_dict()
    assert not any(torch.allclose(moved[name], tensor, atol=1e-3) for name, tensor in weights(folder).items())


def test_a_run_is_continued_from_its_newest_checkpoint(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    train(recipe(text, mdlm_folder), tmp_path / "first")
    described = recipe(text, tmp_path / "first")
    assert described.model.path == str(tmp_path / "first" / "checkpoints" / "step-00000006")
    train(described, tmp_path / "second")
    assert load_checkpoint(tmp_path / "second").tokenizer.mask_token_id == 257


def test_lora_stopped_and_resumed_equals_an_unbroken_run(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    lora = ["model.lora.rank=2", "model.lora.dropout=0.3", "optimizer.learning_rate=0.01"]
    check_resume(recipe(text, mdlm_folder, *lora), tmp_path, stop=3)


@pytest.mark.parametrize(("length", "longest"), [(LENGTH + 16, LENGTH + 16), (16, LENGTH)])
def test_length_dropout_and_objective_may_change(
    text: Path, mdlm_folder: Path, tmp_path: Path, length: int, longest: int
) -> None:
    others = [f"data.length={length}", "model.dropout=0.4", "objective={name: d3pm, steps: 4, zero_masking: false}"]
    train(recipe_from(str(text), str(mdlm_folder), [*STILL, *others]), tmp_path / "run")
    loaded = load_checkpoint(tmp_path / "run")
    assert loaded.config.length == length
    assert (loaded.model.config.max_length, loaded.model.config.dropout) == (longest, 0.4)
    assert loaded.model.config.mask_logit


def test_lora_is_trained_beside_the_weights_and_merged_when_saved(
    text: Path, mdlm_folder: Path, tmp_path: Path
) -> None:
    lora = ["model.lora={rank: 2, targets: [attn_qkv, mlp.0]}", "optimizer.learning_rate=0.05"]
    described = recipe(text, mdlm_folder, *lora)
    assert train(described, tmp_path / "run").steps == 6
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
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "run").config.max_length == LENGTH
    assert parse_recipe(described.model_dump(mode="json")) == described


def test_muon_is_replaced_by_adamw_for_lora_with_a_notice(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    train(recipe(text, mdlm_folder, "model.lora.rank=2", "optimizer=muon"), tmp_path / "run")
    notice = read_log(tmp_path / "run")[0]["advice"]
    assert "no matrix inside a block is trained" in notice
    assert "using AdamW" in notice


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.size=tiny", "'model.size=tiny' does not fit .* has its own network; leave it out, or train from"),
        ("model={name: dit}", "has its own network"),
        ("data.tokenizer=byte", "'data.tokenizer=byte' does not fit .* has its own tokenizer"),
        ("data.tokenizer.name=byte", "has its own tokenizer"),
        ("model.lora.rnak=2", "lora.rnak"),
        ("objective=ar", "model 'checkpoint' reads both ways, and the objective 'ar' needs left to right; choose"),
    ],
)
def test_overrides_that_do_not_fit_are_refused(
    text: Path, mdlm_folder: Path, tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(UnmaskError, match=message):
        train(recipe(text, mdlm_folder, override), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_without_a_tokenizer_needs_the_right_one(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
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
    assert train(recipe(text, tmp_path / "converted"), tmp_path / "run").bound.nats > 0


def test_bf16_weights_are_trained_in_float32(mdlm_folder: Path, tmp_path: Path) -> None:
    loaded = load_checkpoint(mdlm_folder)
    save_checkpoint(tmp_path / "half", loaded.model.to(torch.bfloat16), loaded.tokenizer, loaded.config)
    network = CheckpointSpec(path=str(tmp_path / "half")).build(258, 257, LENGTH)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


def test_missing_checkpoints_and_other_files_are_named(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match=r"There is no checkpoint at '.*nowhere'"):
        recipe(text, tmp_path / "nowhere")
    gone = recipe(text, mdlm_folder).model_dump(mode="json")
    gone["model"]["path"] = str(tmp_path / "gone")
    with pytest.raises(UnmaskError, match=r"There is no checkpoint at '.*gone'"):
        train(parse_recipe(gone), tmp_path / "run")
    for other in (text, text.parent):
        with pytest.raises(UnmaskError, match=f"'{other}' is not a checkpoint"):
            recipe_from(str(text), str(other))


def test_a_recipe_may_need_its_overrides(text: Path, tmp_path: Path) -> None:
    (tmp_path / "half.yaml").write_text("data: {source: {name: text}}")
    whole = recipe_from(str(tmp_path / "half.yaml"), None, [f"data.source.paths=['{text}']"])
    assert whole.data.source.paths == [str(text)]
    with pytest.raises(UnmaskError, match="paths"):
        recipe_from(str(tmp_path / "half.yaml"), None)
