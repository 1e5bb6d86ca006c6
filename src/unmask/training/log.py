"""log.jsonl: one JSON object a line.

Training: {step, loss, bits_per_token, grad_norm, cross_entropy, learning_rate, tokens_per_second, memory_gib, mfu,
seconds}. Validation: {step, validation: bounds with their errors; foresight: that of a planner, where one is trained}.
Samples: {step, samples: texts}. Advice: {step, advice: a sentence}.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from unmask.io import atomic_text

LOG = "log.jsonl"


class Log:
    """The log of a run, written by the process that keeps it. A line is with the system when `write` returns."""

    def __init__(self, folder: Path, kept: bool = True) -> None:
        self.path = folder / LOG
        self._kept = kept

    def write(self, record: dict[str, Any]) -> None:
        """Add a line; a number that is not known (NaN) becomes null."""
        if not self._kept:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))

    def truncate(self, step: int) -> None:
        """Forget what came after a step, as a resumed run will write it again."""
        if not self._kept:
            return
        kept = [record for record in read_log(self.path.parent) if record["step"] <= step]
        atomic_text(self.path, "".join(_line(record) for record in kept))


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; a last line that was cut off by a crash is left out."""
    path = folder / LOG
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


def _line(record: dict[str, Any]) -> str:
    return json.dumps(_without_nan(record), allow_nan=False) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
