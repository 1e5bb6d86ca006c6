"""Entropy, repetition and distinct n-grams of texts, and estimates with 95% confidence intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Ids = Sequence[int]
T = TypeVar("T")

REPETITION_N = 4
RESAMPLES = 1000
LEVEL = 0.95
Z = 1.959964
"""Half the width of a 95% interval of the normal distribution, in standard errors."""


def unigram_entropy(ids: Ids) -> float:
    """Entropy in nats of the token histogram of one text; 0 for an empty text."""
    counts = np.array(list(Counter(ids).values()), dtype=np.float64)
    share = counts / max(len(ids), 1)
    return float(-(share * np.log(share)).sum()) + 0.0


def ngrams(tokens: Sequence[T], n: int) -> list[tuple[T, ...]]:
    """All n-grams of token ids or words in order; none if the text is shorter than n."""
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def repetition(texts: Sequence[Ids], n: int = REPETITION_N) -> tuple[Values, Values]:
    """For each text, the number of n-grams that occur earlier in the same text, and the number of all n-grams."""
    found = [ngrams(ids, n) for ids in texts]
    return to_array(len(grams) - len(set(grams)) for grams in found), to_array(map(len, found))


def distinct(texts: Sequence[Ids], n: int) -> tuple[Values, Values]:
    """For each text, its share of the distinct n-grams of the collection, and the number of its n-grams.

    Distinct n-grams are counted over all texts together, so a model that repeats one text scores low. An n-gram that
    occurs in several texts is divided evenly among them.
    """
    found = [ngrams(ids, n) for ids in texts]
    occurrences = Counter(gram for grams in found for gram in set(grams))
    return to_array(sum(1.0 / occurrences[gram] for gram in set(grams)) for grams in found), to_array(map(len, found))


def to_array(values: Iterable[float]) -> Values:
    """One float64 per value."""
    return np.array(list(values), dtype=np.float64)


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its 95% interval; None if it is unknown, as for a single text or batch."""

    value: float
    low: float | None = None
    high: float | None = None

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Apply an increasing function to the value and to both ends."""
        low, high = (None if end is None else function(end) for end in (self.low, self.high))
        return Estimate(function(self.value), low, high)

    def as_dict(self) -> dict[str, float | None]:
        return asdict(self)


def bootstrap_weights(count: int, resamples: int = RESAMPLES, seed: int = 0) -> Values:
    """[resamples, count]: how often each of `count` texts occurs in each resample of the same size."""
    draws = np.random.Generator(np.random.Philox(seed)).integers(count, size=(resamples, count))
    flat = (np.arange(resamples)[:, None] * count + draws).ravel()
    return np.bincount(flat, minlength=resamples * count).reshape(resamples, count).astype(np.float64)


def bootstrap_ratio(numerator: Values, denominator: Values, weights: Values) -> Estimate | None:
    """sum(numerator) / sum(denominator) with its bootstrap interval; None if the denominator is zero."""
    if not denominator.sum():
        return None
    value = float(numerator.sum() / denominator.sum())
    if len(numerator) < 2:
        return Estimate(value)
    numerators, denominators = weights @ numerator, weights @ denominator
    valid = denominators > 0
    return Estimate(value, *quantile_interval(numerators[valid] / denominators[valid]))


def quantile_interval(values: Sequence[float] | Values) -> tuple[float, float]:
    """The quantiles of resampled values between which a share of `LEVEL` lies."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def result_as_dict(result: Any) -> dict[str, Any]:
    """The fields of a result for JSON, with its metrics beside them."""
    row = dict(vars(result))
    metrics: Mapping[str, Estimate | None] = row.pop("metrics")
    return row | {name: None if one is None else one.as_dict() for name, one in metrics.items()}


def wilson(successes: Values) -> Estimate:
    """The mean of n zeros and ones with Wilson's score interval, which holds near 0 and 1 too."""
    n, rate = len(successes), float(successes.mean())
    centre = (rate + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n))
    return Estimate(rate, max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half)))


def format_estimate(estimate: Estimate | None) -> str:
    """``20.1 (18.9–21.4)``: three digits and the interval, unless it is unknown or has no width.

    Up to three digits are added if the ends would look the same.
    """
    if estimate is None:
        return "-"
    value, low, high = estimate.value, estimate.low, estimate.high
    if low is None or high is None or low == high:
        return _format(value)
    more = next((more for more in range(3) if _format(low, more) != _format(high, more)), 3)
    dash = "–" if low >= 0 else " to "
    return f"{_format(value, more)} ({_format(low, more)}{dash}{_format(high, more)})"


def _format(value: float, more: int = 0) -> str:
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits + more}f}"
