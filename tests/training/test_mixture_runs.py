"""A mixture trains, validates, resumes and is evaluated like any other corpus."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from unmask.config import Recipe, parse_recipe
from unmask.data.length_policies import Padded
from unmask.data.split import prepare
from unmask.errors import UnmaskError
from unmask.evaluation.perplexity import evaluation_rows
from unmask.pipeline import load
from unmask.training import train


def recipe(folder: Path, weights: tuple[int, int] = (3, 1), steps: int = 2) -> Recipe:
    for name, letter in (("verse.txt", "a"), ("prose.txt", "b")):
        (folder / name).write_text("".join(f"{letter * 9} {number:03}\n" for number in range(120)))
    parts = [
        {"source": {"name": "text", "paths": str(folder / name), "separator": "line"}, "weight": weight}
        for name, weight in zip(("verse.txt", "prose.txt"), weights, strict=True)
    ]
    return parse_recipe(
        {
            "data": {"source": {"name": "mixture", "parts": parts}, "length": 16, "validation": 0.2},
            "model": {"name": "dit", "hidden_size": 16, "layers": 1, "heads": 2},
            "training": {"steps": steps, "batch_size": 8, "save_every": 1},
        }
    )


def test_a_mixture_trains_resumes_and_is_evaluated(tmp_path: Path) -> None:
    train(recipe(tmp_path), tmp_path / "run")
    result = train(recipe(tmp_path, steps=3), tmp_path / "run", resume=True)
    assert result.steps == 3
    assert result.bound.tokens > 0
    lm = load(tmp_path / "run", device="cpu")
    rows = evaluation_rows(lm)
    first = Counter(chr(letter) for letter in rows[:].input_ids[:, 0] if chr(letter) in "ab")
    assert min(first["a"], first["b"]) > 3, "both parts are in it"
    assert rows.bytes == 13 * rows.documents
    with pytest.raises(UnmaskError, match=r"data\.source\.parts"):
        train(recipe(tmp_path, weights=(1, 1), steps=4), tmp_path / "run", resume=True)


def test_training_rows_come_by_weight(tmp_path: Path) -> None:
    data = recipe(tmp_path, weights=(7, 1)).data
    rows, _ = prepare(data.source, data.tokenizer).rows(Padded(), data.length)
    drawn = rows[rows.sample(0, np.arange(4096))].input_ids[:, 0]
    assert Counter(map(chr, drawn)) == {"a": 3584, "b": 512}
