"""The shipped models are small, load fast, have a complete model card, and model their data."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import yaml

from unmask.checkpoint import DEFAULT_AR_MODEL, DEFAULT_MODEL, SHIPPED, shipped_models
from unmask.cli.demo import STORY
from unmask.config import parse_recipe
from unmask.likelihood import LEARNED_PADDING_NOTE
from unmask.pipeline import load

each_model = pytest.mark.parametrize("name", shipped_models())


@each_model
def test_a_model_is_small_and_complete(name):
    files = {path.name: path.stat().st_size for path in (SHIPPED / name).iterdir()}
    assert sum(files.values()) <= (1_000_000 if name == "smoke" else 20 * 2**20)
    assert {"config.json", "unmask.json", "recipe.yaml", "README.md", "tokenizer.json"} <= set(files)
    assert load(name, device="cpu").tokenizer.mask_token == "[MASK]"
    for file in ("recipe.yaml", "unmask.json"):
        text = (SHIPPED / name / file).read_text(encoding="utf-8")
        assert not re.search(r"[\s\"'](/|~|[A-Z]:)\w", text), "an absolute path"


@each_model
def test_the_card_is_complete_and_agrees_with_the_recipe(name):
    card = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    for section in ("Data", "Budget", "Size", "Likelihood", "Limits"):
        assert f"\n## {section}\n" in card
    assert re.search(r"\| (≤ )?\d\.\d{3} ± \d\.\d{3}", card)
    recipe = parse_recipe(yaml.safe_load((SHIPPED / name / "recipe.yaml").read_text(encoding="utf-8")))
    files = getattr(recipe.data.source, "validation_files", None)
    assert (f"| held out | the files `{files}` |" in card) == (files is not None)
    assert (LEARNED_PADDING_NOTE in card) == recipe.data.policy.supervises_padding
    assert ("starting from the weights of an earlier run" in card) == (recipe.model.name == "checkpoint")


LOAD = """
import time
import torch
from transformers import PreTrainedModel
start = time.process_time()
import unmask
from unmask.checkpoint import shipped_models
for name in shipped_models():
    unmask.load(name, device="cpu")
    print(time.process_time() - start)
    start = time.process_time()
"""


def test_every_model_loads_in_under_two_seconds():
    """In a new process that has the libraries imported, in CPU time, because machines are shared."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, env=environment)
    assert all(float(seconds) < 2 for seconds in done.stdout.split())


def test_the_default_model_needs_no_name():
    assert shipped_models() == ["smoke", DEFAULT_MODEL, DEFAULT_AR_MODEL]
    assert load(device="cpu").fill("Once upon a [MASK], there was", greedy=True) == "Once upon a time, there was"


@pytest.mark.parametrize("name", [DEFAULT_MODEL, DEFAULT_AR_MODEL])
def test_a_story_is_likelier_than_its_words_backwards(name):
    bound = load(name, device="cpu").score([STORY, " ".join(reversed(STORY.split()))], precision=0.4)
    story, backwards = bound[0], bound[1]
    error = story.error("bits_per_char") + backwards.error("bits_per_char")
    assert story.bits_per_char < 1.2
    assert story.bits_per_char < backwards.bits_per_char - 1 - 4 * error


def test_the_default_model_has_defaults_for_good_texts_and_its_card_names_them():
    lm = load(device="cpu")
    config, sampler = lm.resolve({}, lm.sample)
    assert (config.top_p, sampler.name, sampler.strategy, sampler.steps) == (0.9, "remdm", "cap_conf", 128)
    card = (SHIPPED / DEFAULT_MODEL / "README.md").read_text(encoding="utf-8")
    assert "top-p 0.9" in card
    assert f"strategy: cap_conf, eta: {sampler.eta}" in card
    assert "exact=True" in card


def test_a_generated_story_resembles_the_data():
    text = load(device="cpu").generate(1, seed=0)[0]
    assert len(text) > 200
    assert len({*STORY.lower().split()} & {*text.lower().split()}) > 10
