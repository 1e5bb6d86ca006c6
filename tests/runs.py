"""Helpers for tests that train: small texts and recipes, Ctrl-C at a step, and the tensors of a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unmask.config import Recipe, parse_recipe
from unmask.training import Callback, Interrupted, train
from unmask.training.callbacks import read_log
from unmask.training.checkpointing import find_latest

LETTERS = "abcdefgh"
BY_LETTER = {"tokenizer": {"name": "char", "alphabet": LETTERS}}
NARROW = {"hidden_size": 32, "layers": 2, "heads": 2, "dropout": 0.0}


def write_cats(path: Path, lines: int) -> Path:
    """Lines that differ only in their numbers."""
    path.write_text("\n".join(f"the {i} cats sat on {i * i} mats" for i in range(lines)))
    return path


def write_markov(path: Path, lines: int) -> Path:
    """Lines of a Markov chain: a letter is followed by the next with probability 0.9, else by a random one."""
    draw = np.random.default_rng(0)
    written = []
    for _ in range(lines):
        letter, line = draw.integers(8), ""
        for _ in range(96):
            letter = (letter + 1) % 8 if draw.random() < 0.9 else draw.integers(8)
            line += LETTERS[letter]
        written.append(line)
    path.write_text("\n".join(written) + "\n")
    return path


Sections = Mapping[str, Mapping[str, Any]]


def short_recipe(text: Path, kind: str, usual: Sections, changes: Sections) -> Recipe:
    """A tiny model on the lines of a text, with the usual sections of a test file and changes to them."""
    values: dict[str, dict[str, Any]] = {
        "data": {"source": {"name": "text", "paths": str(text), "separator": "line"}, "length": 16, "validation": 0.2},
        "model": {"name": "causal" if kind == "ar" else "dit", "size": "nano", **NARROW},
        "objective": {"name": kind},
    }
    for sections in (usual, changes):
        for section, options in sections.items():
            values[section] = {**values.get(section, {}), **options}
    return parse_recipe(values)


class StopAt(Callback):
    """Presses Ctrl-C after a number of steps."""

    def __init__(self, step: int) -> None:
        self.left = step

    def on_step(self) -> None:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)


def everything(out: Path) -> dict[str, torch.Tensor]:
    """All tensors of a run's newest checkpoint: EMA weights, weights, optimizer, generator states."""
    latest = find_latest(out)
    assert latest is not None
    files = [latest / "model.safetensors", *sorted((latest / "state").glob("*.safetensors"))]
    return {f"{file.relative_to(latest)}:{name}": tensor for file in files for name, tensor in load_file(file).items()}


def assert_same_tensors(one: Path, other: Path) -> None:
    """The newest checkpoints of two runs are equal bit by bit."""
    left, right = everything(one), everything(other)
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def check_resume(recipe: Recipe, folder: Path, stop: int) -> None:
    """A run stopped after `stop` steps and resumed equals an unbroken one."""
    train(recipe, folder / "whole")
    with pytest.raises(Interrupted):
        train(recipe, folder / "broken", callbacks=[StopAt(stop)])
    torch.rand(100)
    train(recipe, folder / "broken", resume=True)
    assert_same_tensors(folder / "whole", folder / "broken")


def read_log_without_times(out: Path) -> list[dict[str, Any]]:
    """The log of a run without measured times and memory."""
    measured = ("seconds", "tokens_per_second", "memory_gib", "mfu")
    return [{key: value for key, value in line.items() if key not in measured} for line in read_log(out)]
