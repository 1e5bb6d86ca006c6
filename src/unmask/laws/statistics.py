"""The few statistics that laws need: how unlikely a count is under a law, and how far a mean is from its value."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LEAST_EXPECTED = 5.0


def chi_square(counts: Tensor, law: Tensor) -> float:
    """The p-value of Pearson's test of counts [K] against a law [K]; rare outcomes are counted together.

    An outcome of probability 0 that was seen gives 0.
    """
    total = float(counts.sum())
    if bool((counts[law <= 0] > 0).any()):
        return 0.0
    expected = law * total
    rare = expected < LEAST_EXPECTED
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    kept = expected > 0
    statistic = ((counts - expected).square()[kept] / expected[kept]).sum()
    degrees = int(kept.sum()) - 1
    if degrees < 1:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor(degrees / 2, dtype=torch.float64), statistic / 2))


def deviations(samples: Tensor, value: float) -> float:
    """How many standard errors the mean of independent samples [R] is from a value."""
    error = float(samples.std()) / math.sqrt(len(samples))
    return abs(float(samples.mean()) - value) / max(error, 1e-12)
