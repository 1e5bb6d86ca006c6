"""Looks at every record of a run and speaks once for each episode of trouble."""

from __future__ import annotations

from typing import Any

from unmask.training.advice.history import History, Yardstick
from unmask.training.advice.symptoms import SYMPTOMS

CALM = 20
"""Records without a symptom that end its episode."""


class Advisor:
    """What it says is a function of the records alone: looking through a log again says the same again.

    Symptoms are ordered by how much they explain: while one holds, those behind it are not looked for.
    """

    def __init__(self, yardstick: Yardstick) -> None:
        self._history = History(yardstick)
        self._calm_since: dict[str, int] = {}
        self._records = 0

    def look(self, record: dict[str, Any]) -> list[str]:
        """The sentences that a new record of the log gives reason for; mostly none."""
        if not self._history.add(record):
            return []
        self._records += 1
        for name, symptom in SYMPTOMS.items():
            if sentence := symptom(self._history):
                return [sentence] if self._begins(name) else []
        return []

    def _begins(self, name: str) -> bool:
        """Whether a symptom that is seen now was not seen for a while."""
        seen_before = self._calm_since.get(name)
        self._calm_since[name] = self._records
        return seen_before is None or self._records - seen_before > CALM
