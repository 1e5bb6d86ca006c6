"""Optimisers in whole runs: Muon resumes to the bit, and a falling rate keeps a run to the steps it fell towards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runs import StopAt, assert_same_tensors, everything, write_cats
from unmask.config import Recipe, parse_recipe, read_recipe
from unmask.errors import UnmaskError
from unmask.optimizers.base import AdamW
from unmask.optimizers.muon import Muon
from unmask.training import Interrupted, train
from unmask.training.checkpointing import write_checksums
from unmask.training.log import read_log


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cats(tmp_path_factory.mktemp("text") / "text.txt", 60)


def recipe(text: Path, optimizer: dict[str, Any], steps: int = 12) -> Recipe:
    return parse_recipe(
        {
            "data": {"source": {"name": "text", "paths": str(text), "separator": "line"}, "length": 16},
            "model": {"name": "dit", "size": "nano", "hidden_size": 32, "layers": 2, "heads": 2, "dropout": 0.2},
            "optimizer": {"learning_rate": 3e-3, "warmup": 3, "ema": 0.9, **optimizer},
            "training": {
                "steps": steps, "batch_size": 8, "log_every": 1,
                "validate_every": 100, "validation_rows": 8, "save_every": 100,
            },
        }
    )  # fmt: skip


def test_muon_resumes_to_the_bit(text: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    muon = recipe(text, {"name": "muon", "cooldown": 0.5, "weight_decay": 0.1})
    train(muon, whole)
    with pytest.raises(Interrupted):
        train(muon, broken, progress=StopAt(7))
    torch.rand(100)
    train(muon, broken, resume=True)
    assert_same_tensors(whole, broken)
    assert "optimizer.safetensors:blocks.0.attn_qkv.weight.momentum_buffer" in everything(whole)


def test_the_log_shows_the_falling_rate(text: Path, tmp_path: Path) -> None:
    train(recipe(text, {"cooldown": 0.5}, steps=8), tmp_path / "run")
    shares = [line["learning_rate"] / 3e-3 for line in read_log(tmp_path / "run") if "loss" in line]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 0.75, 0.5, 0.25])


def test_more_steps_are_possible_until_the_rate_falls(text: Path, tmp_path: Path) -> None:
    falling = {"cooldown": 0.5}
    with pytest.raises(Interrupted):
        train(recipe(text, falling, steps=12), tmp_path / "early", progress=StopAt(7))
    train(recipe(text, falling, steps=16), tmp_path / "early", resume=True)
    train(recipe(text, falling, steps=16), tmp_path / "unbroken")
    assert_same_tensors(tmp_path / "early", tmp_path / "unbroken")
    with pytest.raises(UnmaskError, match=r"falling towards its last step, 16, so it cannot go on to 20; .*--from"):
        train(recipe(text, falling, steps=20), tmp_path / "early", resume=True)


def test_another_optimiser_does_not_go_on_with_its_moments(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(recipe(text, {"name": "muon"}), out, progress=StopAt(4))
    monkeypatch.setattr(Muon, "resolve", lambda *_: (AdamW(), "DeepSpeed rolls matrices into vectors"))
    with pytest.raises(UnmaskError, match=r"trained with muon, which cannot work .*adamw would take its place"):
        train(recipe(text, {"name": "muon"}), out, resume=True)


def test_a_run_from_before_optimisers_had_names_goes_on(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(recipe(text, {}), out, progress=StopAt(4))
    file = out / "latest" / "state" / "trainer.json"
    state = json.loads(file.read_text())
    for key in ("name", "cooldown", "cooldown_shape", "cooldown_to"):
        del state["recipe"]["optimizer"][key]
    file.write_text(json.dumps(state))
    write_checksums(out / "latest")
    assert train(recipe(text, {}), out, resume=True).steps == 12
    with pytest.raises(UnmaskError, match=r"optimizer\.name=adamw and the recipe now says muon"):
        train(recipe(text, {"name": "muon", "cooldown": 0.0}), out, resume=True)


def test_a_recipe_names_its_optimiser_or_means_adamw() -> None:
    assert parse_recipe({"optimizer": {"learning_rate": 0.1}}).optimizer == AdamW(learning_rate=0.1)
    assert parse_recipe({"optimizer": "muon"}).optimizer == Muon()
    assert read_recipe("paper/text8").optimizer == AdamW()
    assert read_recipe("paper/text8", ["optimizer.name=muon", "optimizer.momentum=0.9"]).optimizer == Muon(momentum=0.9)
    with pytest.raises(UnmaskError, match=r"optimizer 'adamw' has no option 'momentum'"):
        parse_recipe({"optimizer": {"momentum": 0.9}})
    with pytest.raises(UnmaskError, match=r"no optimizer named 'moun'.*Did you mean 'muon'"):
        parse_recipe({"optimizer": {"name": "moun"}})
