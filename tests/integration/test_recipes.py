"""Every shipped recipe states its expected result and trains for two steps with a small model.

The recipes `planner` and `bert-small-mdlm` need a trained checkpoint; tests/training/test_planner_runs.py and
tests/models/test_encoder.py train them.
"""

from __future__ import annotations

import pytest
import torch

from unmask.config import read_recipe, shipped_recipes
from unmask.models.config import DiTConfig
from unmask.models.dit import DiT
from unmask.training import train

SMALL = ["model.hidden_size=16", "model.layers=1", "model.heads=1"]
SMALL += ["training.steps=2", "training.batch_size=2", "training.validation_rows=2"]


NOT_MEASURED = (
    "default",
    "finetune",
    "translation",
    "translation-ar",
    "translation-encdec",
    "bert-small",
    "bert-small-mdlm",
    "dna",
    "text8",
    "text8-ar",
)
NEEDS_CHECKPOINT = ("planner", "bert-small-mdlm")


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name not in NOT_MEASURED])
def test_a_recipe_states_its_expected_result(name):
    expect = read_recipe(name).expect
    assert expect.bits_per_token or expect.bits_per_byte
    assert expect.note


@pytest.mark.parametrize(("name", "vocab_size"), [("owt", 50_258), ("lm1b", 30_522), ("text8", 28)])
def test_paper_recipes_build_the_published_network(name, vocab_size):
    """Modulated at sigma = 0, as published, whatever alpha is."""
    recipe = read_recipe(f"paper/{name}")
    with torch.device("meta"):
        network = recipe.model.build(vocab_size, vocab_size - 1, recipe.data.length)
        published = DiT(DiTConfig(vocab_size=vocab_size, conditioned=True))
    assert {key: one.shape for key, one in network.state_dict().items()} == {
        key: one.shape for key, one in published.state_dict().items()
    }
    assert not network.config.conditioned
    if name == "owt":
        assert sum(weight.numel() for weight in network.parameters()) == 169_627_218


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name not in NEEDS_CHECKPOINT])
def test_a_recipe_trains(name, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a few plain words on every line\n" * 40)
    if name.startswith(("sudoku", "paths")):
        small = ["data.source.count=20", "data.source.validation=4"]
        small += ["data.source.bases=8"] if name.startswith("sudoku") else []
    elif name.startswith("translation"):
        small = ["data.source={name: toy_translation, count: 20, validation: 4}", "data.tokenizer=byte"]
    elif name == "dna":
        small = ["data.source.protocol=toy-dna", "data.length=32"]
    else:
        tokenizer = "char" if name == "paper/text8" else "byte"
        source = f"data.source={{name: text, paths: ['{text}'], separator: line}}"
        small = [source, f"data.tokenizer={tokenizer}", "data.length=32"]
    small += [one for one in SMALL if not (name == "dna" and "heads" in one)]
    result = train(read_recipe(name, small), tmp_path / "run")
    assert result.steps == 2
    assert result.bound.nats > 0
