"""Recipes: reading, overrides, and messages for wrong values."""

from __future__ import annotations

import pytest
import yaml

from unmask.config import check_recipe, parse_recipe, read_recipe, recipe_for, shipped_recipes
from unmask.errors import UnmaskError


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_reads_back_as_itself(name):
    recipe = read_recipe(name)
    assert parse_recipe(yaml.safe_load(recipe.to_yaml())) == recipe


def test_overrides_set_nested_values_and_a_new_name_drops_the_old_options(tmp_path):
    (tmp_path / "my.yaml").write_text("schedule: {name: polynomial, power: 3}\ntraining: {steps: 7}\n")
    recipe = read_recipe(tmp_path / "my.yaml", ["training.batch_size=4", "optimizer.learning_rate=0.01"])
    assert (recipe.training.steps, recipe.training.batch_size) == (7, 4)
    assert (recipe.optimizer.name, recipe.optimizer.learning_rate) == ("adamw", 0.01)
    assert recipe.schedule.power == 3
    assert read_recipe(tmp_path / "my.yaml", ["schedule.power=4"]).schedule.power == 4
    assert read_recipe(tmp_path / "my.yaml", ["schedule.name=cosine"]).schedule.name == "cosine"
    assert recipe_for(str(tmp_path / "my.yaml"), ["training.steps=9"]).training.steps == 9


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.compile=maybe", r"^training.compile must be a valid boolean or 'auto', got 'maybe'\.$"),
        ("training.steps=abc", r"^training.steps must be a valid integer, got 'abc'\.$"),
        ("training.steps=0", r"^training.steps must be greater than or equal to 1, got 0\.$"),
        ("training.trackers=[foo]", r"^training.trackers must be 'tensorboard', 'wandb' or 'trackio', got 'foo'"),
        (
            "training.batch_size=1000000000",
            r"^training.batch_size must be less than or equal to 1000000, got 1000000000",
        ),
        ("model.layers=1000000000", r"^model 'dit': layers must be less than or equal to 1000, got 1000000000\.$"),
        (
            "data.tokenizer={name: bpe, vocab_size: 1000000000}",
            r"^tokenizer 'bpe': vocab_size must be less than or equal to 1000000, got 1000000000\.$",
        ),
        ("training.stepz=3", r"^A recipe has no key 'training.stepz'\. Did you mean 'steps'\?"),
        ("training=3", r"^training must be a mapping, got 3"),
        ("data.source={name: text, paths: x, separater: line}", r"^The source 'text' has no option 'separater'\. Did"),
        ("model.size=huge", r"^model 'dit': size must be 'nano', 'tiny', "),
        ("training.steps", "not of the form key.sub=value"),
        ("training.steps=[", "is not YAML; quote it"),
        ("training.steps=2024-99-99", "is not YAML; quote it"),
        ("training.steps=" + 9999 * "[", "is not YAML; quote it"),
    ],
)
def test_a_wrong_override_is_one_sentence(override, message):
    with pytest.raises(UnmaskError, match=message):
        read_recipe("smoke", [override])


def test_a_file_that_is_not_a_recipe_is_named(tmp_path):
    contents = {
        "a: [": r"is not YAML \(line 1: ",
        "a: 2024-99-99": "is not YAML",
        9999 * "[": "is not YAML",
        "- 1": "is not a recipe; write a mapping",
    }
    for content, message in contents.items():
        (tmp_path / "bad.yaml").write_text(content)
        with pytest.raises(UnmaskError, match=message):
            read_recipe(tmp_path / "bad.yaml")
    for name, message in (("nowhere.yaml", "no recipe file"), ("demoo", "Did you mean 'demo'")):
        with pytest.raises(UnmaskError, match=message):
            read_recipe(name)


def test_options_of_a_checkpoints_source_are_left_to_the_checkpoint():
    """`planner` takes its data from the checkpoint, whose source is not known before it is opened."""
    check_recipe("planner", ["data.source.count=100"], fine_tunes=True)
    with pytest.raises(UnmaskError, match=r"has no option 'data.source.cuont'"):
        check_recipe("planner", ["data.source=sudoku", "data.source.cuont=100"], fine_tunes=True)
