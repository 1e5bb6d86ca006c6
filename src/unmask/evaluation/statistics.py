"""Ratios of sums over texts with bootstrap intervals: texts are drawn again with replacement, for all figures alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Ids = Sequence[int]

REPEATED = 4
"""Tokens of the n-grams whose repetition is counted."""


def unigram_entropy(ids: Ids) -> float:
    """Entropy in nats of the histogram of one list's tokens; 0 for an empty one."""
    counts = np.array(list(Counter(ids).values()), dtype=np.float64)
    share = counts / max(len(ids), 1)
    return float(-(share * np.log(share)).sum()) + 0.0


def ngrams(ids: Ids, n: int) -> list[tuple[int, ...]]:
    """All runs of n tokens, in order; none where the list is shorter."""
    return list(zip(*(ids[i:] for i in range(n)), strict=False))


def repetition(lists: Sequence[Ids], n: int = REPEATED) -> tuple[Values, Values]:
    """For each list, its n-grams that stood in it before, and all its n-grams."""
    found = [ngrams(ids, n) for ids in lists]
    return _array(len(grams) - len(set(grams)) for grams in found), _array(map(len, found))


def distinct(lists: Sequence[Ids], n: int) -> tuple[Values, Values]:
    """For each list, its part in the different n-grams of all lists together, and the number of its own n-grams.

    The different n-grams are those of the whole collection, so that a model which writes one text again and again has
    few. One that several lists have is shared out evenly among them.
    """
    found = [ngrams(ids, n) for ids in lists]
    owners = Counter(gram for grams in found for gram in set(grams))
    return _array(sum(1.0 / owners[gram] for gram in set(grams)) for grams in found), _array(map(len, found))


def _array(values: object) -> Values:
    return np.array(list(values), dtype=np.float64)  # type: ignore[call-overload]


RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A figure and the ends of its 95% interval, which are None where one text (or batch) alone is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def map(self, function: Callable[[float], float]) -> Estimate:
        """The same of a rising function of the figure."""
        return Estimate(*(None if x is None else function(x) for x in (self.value, self.low, self.high)))  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, float | None]:
        """Value, low and high."""
        return asdict(self)


def resamples(count: int, times: int = RESAMPLES, seed: int = 0) -> Values:
    """[times, count]: how often each of `count` texts is in each resample of as many."""
    draws = np.random.Generator(np.random.Philox(seed)).integers(count, size=(times, count))
    rows = np.arange(times)[:, None]
    return np.bincount((rows * count + draws).ravel(), minlength=times * count).reshape(times, count).astype(np.float64)


def ratio(top: Values, bottom: Values, weights: Values) -> Estimate | None:
    """sum(top) / sum(bottom) with its interval from the resamples `weights`; None where the whole bottom is zero."""
    if not bottom.sum():
        return None
    value = float(top.sum() / bottom.sum())
    if len(top) < 2:
        return Estimate(value)
    tops, bottoms = weights @ top, weights @ bottom
    known = bottoms > 0
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(tops[known] / bottoms[known], [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def exponential(estimate: Estimate | None) -> Estimate | None:
    """e to the power of a figure, such as a perplexity of nats per token."""
    return None if estimate is None else estimate.map(_exp)


def figure(estimate: Estimate | None) -> str:
    """A figure with its interval, such as ``20.1 (18.9–21.4)``; without it where it is not known or has no width."""
    if estimate is None:
        return "-"
    value = _short(estimate.value)
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return value
    return f"{value} ({_short(estimate.low)}–{_short(estimate.high)})"


def _short(value: float) -> str:
    """Three digits: 0.023, 4.19, 20.1, 256."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))
