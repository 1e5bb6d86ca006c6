"""Validation by the trusted bound, on a fixed sample of the held-out rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from unmask.data.cache import Tokens
from unmask.data.policies import RowBatch, Rows
from unmask.likelihood import Bound, bound
from unmask.objectives.base import Objective
from unmask.schedules import Schedule

PREFERRED = "mask-count"
"""The estimator with the least variance, where an objective has it."""


class Sample(Rows):
    """Rows spread evenly over a table. They cut documents, so bytes and characters are not known."""

    def __init__(self, rows: Rows, count: int) -> None:
        tokens = Tokens(rows.tokens.ids, rows.tokens.offsets, None, None)
        super().__init__(tokens, rows.length, rows.eos_id, rows.pad_id)
        self._rows = rows
        self._chosen = np.arange(count) * len(rows) // count

    def __len__(self) -> int:
        return len(self._chosen)

    def _read(self, rows_B: npt.NDArray[np.int64]) -> RowBatch:
        return self._rows[self._chosen[rows_B]]


def sample(rows: Rows, count: int) -> Rows:
    """At most `count` rows: all of them, or that many spread evenly."""
    return rows if len(rows) <= count else Sample(rows, count)


def validate(denoiser: Any, objective: Objective, schedule: Schedule, rows: Rows, batch_size: int) -> Bound:
    """The bound of the rows by one estimator of the objective. Its draws are the same every time."""
    estimators = objective.estimators()
    name = PREFERRED if PREFERRED in estimators else next(iter(estimators))
    return bound(denoiser, estimators[name], schedule, rows, name=name, batch_size=batch_size)
