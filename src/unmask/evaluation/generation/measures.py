"""What can be counted in lists of tokens: entropy, repetition, distinct n-grams. Pure functions; no texts.

Every function gives, for each list, the parts of a ratio of sums, so that all of them are resampled alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
