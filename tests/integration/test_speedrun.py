"""The script of the speedrun on a small text and network."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speedrun.py"
SMALL = (
    "model={name: dit, hidden_size: 16, layers: 1, heads: 2}",
    "optimizer=adamw",
    "data.length=16",
    "data.validation=0.5",
    "training.steps=12",
    "training.batch_size=4",
    "training.validation_rows=9",
)


def test_the_result_is_valid_json_with_consistent_times(tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox " * 60)
    monkeypatch.setattr("sys.argv", ["speedrun.py", str(text), *SMALL, "--test-characters", "100"])
    runpy.run_path(str(SCRIPT), run_name="__main__")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["test_tokens"] == 100
    assert found["bits_per_char"] == found["bits_per_token"] > 0
    assert found["validation_bits_per_char"] is None, "rows sampled from a text have no character count"
    assert found["seconds"] > found["seconds_to_last_step"] > 0
    assert math.isclose(found["tokens_per_second"], 12 * 4 * 16 / found["seconds"])
