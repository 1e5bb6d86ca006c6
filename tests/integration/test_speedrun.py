"""The script of the speedrun, on a text and a network that take no time."""

from __future__ import annotations

import json
import math
import runpy
import time
from pathlib import Path

from unmask.training import trainer as loop

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speedrun.py"
SMALL = (
    "model={name: dit, hidden_size: 16, layers: 1, heads: 2}",
    "optimizer=adamw",
    "data.length=16",
    "data.validation=0.5",
    "training.steps=12",
    "training.batch_size=4",
)


def never(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def test_it_says_what_its_seconds_hold_and_gives_valid_json(tmp_path, monkeypatch, capsys):
    """Rows that are spread have no characters to divide by; the bound takes a second, which one figure holds."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox " * 60)
    measure = loop.measure

    def slowly(*args):
        time.sleep(1.0)
        return measure(*args)

    monkeypatch.setattr(loop, "measure", slowly)
    monkeypatch.setattr("sys.argv", ["speedrun.py", str(text), *SMALL, "training.validation_rows=9"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    found = json.loads(capsys.readouterr().out, parse_constant=never)
    assert found["bits_per_char"] is None
    assert found["bits_per_token"] > 0
    assert found["seconds"] - found["seconds_to_last_step"] > 1.0
    assert math.isclose(found["tokens_per_second"], 12 * 4 * 16 / found["seconds"])
