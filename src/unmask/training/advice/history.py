"""What the records of a run say as numbers, with the noise that they carry."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from unmask.data.policies import Policy
from unmask.data.rows import Rows
from unmask.objectives.base import Objective
from unmask.optimizers.base import OptimizerComponent

LINES = 400
"""Newest training lines that are remembered."""
MOST_BUCKETS = 8
ROWS_LOOKED_AT = 1024

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Yardstick:
    """What a run's records are judged by.

    uniform_bits: what equal chances for all tokens cost. unigram_bits: the entropy of single tokens, which a network
    that ignores its input can reach. blind_at_full_mask: whether a fully masked row shows nothing (no given tokens, no
    learnt pads). weighted: whether the loss has weights that the recipe can make flat.
    """

    uniform_bits: float
    unigram_bits: float
    warmup: int
    clip: float
    blind_at_full_mask: bool = True
    weighted: bool = True

    @classmethod
    def of(
        cls, rows: Rows, policy: Policy, vocab_size: int, objective: Objective, optimizer: OptimizerComponent
    ) -> Yardstick:
        """The yardstick of a run on these rows; one of the tokens is the mask. A planner answers yes or no: one bit."""
        if objective.plans:
            return cls(1.0, 1.0, optimizer.warmup, optimizer.clip, blind_at_full_mask=False, weighted=False)
        some = rows.spread(ROWS_LOOKED_AT)[:]
        counted = some.attention_mask & ~some.frozen
        return cls(
            uniform_bits=math.log2(max(2, vocab_size - 1)),
            unigram_bits=entropy_bits(some.input_ids[counted]),
            warmup=optimizer.warmup,
            clip=optimizer.clip,
            blind_at_full_mask=not (policy.learnt_pads or some.frozen.any()),
            weighted=getattr(objective, "weight", None) == "bound",
        )


@dataclass(frozen=True)
class Validation:
    """One validation: the bound in bits per token and the error of its draws."""

    step: int
    bits: float
    error: float


class History:
    """The newest training lines and all validations of a run, and what it is judged by."""

    def __init__(self, yardstick: Yardstick) -> None:
        self.yardstick = yardstick
        self.start: float | None = None
        """The level of the very first line."""
        self.validations: list[Validation] = []
        self._lines: deque[tuple[float, ...]] = deque(maxlen=LINES)

    def add(self, record: dict[str, Any]) -> bool:
        """Take in a training or a validation record; False for any other."""
        if "loss" in record:
            self._lines.append(_numbers(record))
            self.start = _level(record) if self.start is None else self.start
        elif "validation" in record:
            bound = record["validation"]
            error = bound["bits_per_token_mc_stderr"] or 0.0
            self.validations.append(Validation(record["step"], bound["bits_per_token"], error))
        else:
            return False
        return True

    @property
    def steps(self) -> Values:
        """Steps of the training lines."""
        return self._column(0)

    @property
    def levels(self) -> Values:
        """Bits per token of the training lines with as little noise as they allow: `_level`."""
        return self._column(1)

    @property
    def losses(self) -> Values:
        """The bound in bits per token as it was drawn, weights and all."""
        return self._column(2)

    @property
    def grad_norms(self) -> Values:
        """Gradient norms before clipping."""
        return self._column(3)

    @property
    def nearly_all_masked(self) -> Values:
        """Cross-entropy of the highest mask rates in bits; NaN where there was none."""
        return self._column(4)

    def _column(self, number: int) -> Values:
        return np.array([line[number] for line in self._lines], dtype=np.float64)


def _numbers(line: dict[str, Any]) -> tuple[float, ...]:
    last = line["cross_entropy"][-1]
    masked = math.nan if last is None else last / math.log(2.0)
    return line["step"], _level(line), line["bits_per_token"], line["grad_norm"], masked


def noise(values: Values, order: int = 1) -> float:
    """Standard deviation of a value around a slow course, from the steps between neighbours; outliers do not count.

    `order=2` takes the steps between steps, which a steady slope has no part in. Infinite where there are too few.
    """
    steps = np.diff(values, order)
    spread = 1.4826 * np.median(np.abs(steps)) / math.sqrt(math.comb(2 * order, order)) if len(steps) > 1 else math.inf
    return float(spread)


def entropy_bits(tokens: npt.NDArray[np.int64]) -> float:
    """The entropy of single tokens, with Miller and Madow's correction for those that a sample misses."""
    counts = np.bincount(tokens.ravel())
    counts = counts[counts > 0]
    share = counts / counts.sum()
    return float(-(share * np.log2(share)).sum() + (len(counts) - 1) / (2 * counts.sum() * math.log(2.0)))


def _level(line: dict[str, Any]) -> float:
    """The bound without its weights: the mean cross-entropy over mask rates, which is the same integral (eq. 11).

    Where mask rates are missing (a left-to-right model, tiny batches) it is the loss itself.
    """
    known = [value for value in line["cross_entropy"] if value is not None]
    if len(known) < MOST_BUCKETS:
        return line["bits_per_token"]
    return sum(known) / len(known) / math.log(2.0)
