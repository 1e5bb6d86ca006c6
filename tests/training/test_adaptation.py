"""Autoregressive networks that become masked ones in training: the recipe, the steps, resuming and the result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.conftest import LENGTH
from tests.runs import check_resume, write_cats
from unmask.checkpoint import load_checkpoint
from unmask.config import Recipe, parse_recipe
from unmask.errors import UnmaskError
from unmask.models.attention import AttentionAnnealing
from unmask.pipeline import load
from unmask.training import train
from unmask.training.run import recipe_from

SHORT = ["training.steps=6", "training.batch_size=4", "training.validation_rows=4", "training.save_every=2"]
SUBS = [*SHORT, "objective=subs", "model.annealing_steps=4", "optimizer.learning_rate=0.01"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cats(tmp_path_factory.mktemp("text") / "my.txt", 120)


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama with a tokenizer that has no mask token."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    torch.manual_seed(0)
    tokens = {"vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256, "max_position_embeddings": LENGTH + 1}
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(intermediate_size=48, **tokens, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    letters = sorted(ByteLevel.alphabet())
    plain = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    plain.pre_tokenizer, plain.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<eos>", bos_token="<eos>").save_pretrained(folder)
    return folder


def recipe(text: Path, folder: Path, *overrides: str) -> Recipe:
    return recipe_from(str(text), str(folder), [*SUBS, *overrides])


def test_a_masked_objective_adapts_an_autoregressive_checkpoint(text: Path, ar_folder: Path) -> None:
    described = recipe(text, ar_folder)
    assert described.model.model_dump(exclude_defaults=True) == {"path": str(ar_folder), "annealing_steps": 4}
    assert (described.model.name, described.objective.name) == ("adapted", "subs")
    assert described.data.tokenizer.path == str(ar_folder)
    assert parse_recipe(described.model_dump(mode="json")) == described
    flat = recipe(text, ar_folder, "objective={name: subs, weight: flat}")
    assert (flat.model.name, flat.objective.weight) == ("adapted", "flat")
    same = recipe_from(str(text), str(ar_folder), SHORT)
    assert (same.model.name, same.objective.name) == ("checkpoint", "ar")


def test_an_adapted_run_is_a_masked_model(text: Path, ar_folder: Path, tmp_path: Path) -> None:
    result = train(recipe(text, ar_folder), tmp_path / "run")
    assert result.bound.nats > 0
    loaded = load_checkpoint(tmp_path / "run")
    assert (loaded.config.objective.name, loaded.model.config.shifted) == ("subs", True)
    assert loaded.model.config.begin_token_id == loaded.model.config.mask_token_id
    lm = load(tmp_path / "run")
    assert lm.fill("the [MASK:2] cats", seed=1).startswith("the ")
    assert lm.score("the 3 cats", precision=None).nats > 0
    assert len(lm.generate(2, length=12, steps=3)) == 2
    again = train(recipe_from(str(text), str(tmp_path / "run"), SHORT), tmp_path / "again")
    assert again.steps == 6


def test_an_adapted_run_stopped_and_resumed_equals_an_unbroken_one(text: Path, ar_folder: Path, tmp_path: Path) -> None:
    check_resume(recipe(text, ar_folder), tmp_path, stop=2)


def test_annealing_changes_the_run(text: Path, ar_folder: Path, tmp_path: Path) -> None:
    bounds = {}
    for name, change in {"slow": "model.annealing_steps=100", "at once": "model.annealing_steps=0"}.items():
        bounds[name] = train(recipe(text, ar_folder, change), tmp_path / name).bound.nats
    assert bounds["slow"] != bounds["at once"]


def test_every_step_moves_the_annealing(
    text: Path, ar_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, original = [], AttentionAnnealing.seek

    def seek(self: AttentionAnnealing, step: int, seed: int, device: torch.device) -> None:
        steps.append((step, seed))
        original(self, step, seed, device)

    monkeypatch.setattr(AttentionAnnealing, "seek", seek)
    train(recipe(text, ar_folder, "training.seed=7"), tmp_path / "run")
    assert steps == [(step, 7) for step in range(6)]


def test_lora_adapts_an_autoregressive_network(text: Path, ar_folder: Path, tmp_path: Path) -> None:
    train(recipe(text, ar_folder, "model.lora.rank=2"), tmp_path / "run")
    before, after = (load_checkpoint(folder).model.state_dict() for folder in (ar_folder, tmp_path / "run"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("blocks.") for name in changed)


def test_a_hugging_face_causal_lm_becomes_a_masked_model(run, text: Path, llama_folder: Path, tmp_path: Path) -> None:
    short = [override for override in SUBS if override != "objective=subs"]
    code, out, err = run("train", text, "--from", llama_folder, "--out", tmp_path / "run", "--json", *short)
    assert code == 0, err
    assert json.loads(out)["steps"] == 6
    loaded = load_checkpoint(tmp_path / "run")
    assert (loaded.config.objective.name, loaded.config.policy.name, loaded.config.length) == ("subs", "packed", LENGTH)
    config = loaded.model.config
    assert (config.vocab_size, config.mask_token_id, config.begin_token_id) == (258, 257, 256)
    lm = load(tmp_path / "run")
    assert lm.fill("the [MASK:2] cats", seed=1).startswith("the ")
    assert lm.score("the 3 cats", precision=None).nats > 0
    again = train(recipe_from(str(text), str(tmp_path / "run"), SHORT), tmp_path / "again")
    assert again.steps == 6


def test_folders_that_cannot_be_adapted_are_named(text: Path, mdlm_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnmaskError, match="'checkpoint' has no option 'annealing_steps'"):
        recipe(text, mdlm_folder)
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=20, n_positions=8)).save_pretrained(tmp_path)
    with pytest.raises(UnmaskError, match="has no tokenizer; name the one"):
        recipe(text, tmp_path)
    with pytest.raises(UnmaskError, match=r"no network of the type 'gpt2' .* 'unmask train TEXT --from FOLDER'\.$"):
        load(tmp_path)
