"""Where one way overtakes another as something grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Crossing:
    """`winner` is the faster at the largest size; `at` is the size from which it is, None if at all that were tried."""

    winner: str
    loser: str
    at: float | None


def find_crossing(sizes: Sequence[float], seconds: Mapping[str, Sequence[float]]) -> Crossing:
    """Who of two wins in the end, and from where on; between sizes the ratio is straight in the logarithms.

    `sizes` are increasing; `seconds` has two entries with a figure for each size.
    """
    (first, a), (second, b) = seconds.items()
    lead = [math.log(theirs / ours) for ours, theirs in zip(a, b, strict=True)]
    ahead = [gap > 0 for gap in lead]
    winner, loser = (first, second) if ahead[-1] else (second, first)
    behind = [i for i, one in enumerate(ahead) if one != ahead[-1]]
    if not behind:
        return Crossing(winner, loser, None)
    i = behind[-1]
    share = lead[i] / (lead[i] - lead[i + 1])
    low, high = math.log(sizes[i]), math.log(sizes[i + 1])
    return Crossing(winner, loser, math.exp(low + share * (high - low)))
