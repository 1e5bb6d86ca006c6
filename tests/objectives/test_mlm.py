"""BERT's pre-training: which tokens are chosen, and what replaces them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from unmask.objectives.base import Noise
from unmask.objectives.mlm import MLM
from unmask.process import Batch
from unmask.schedules import LogLinear, draw_times

VOCABULARY, MASK, CLEAN = 29, 28, 3


def corrupt(objective: MLM, rows: int, length: int, step: int = 0, vocabulary: int = VOCABULARY):
    """Rows of one token, so that everything else in z is a mask or a random token."""
    sample = torch.arange(rows)
    noise = Noise.draw(0, step, sample, draw_times(0, step, sample, rows), length)
    batch = Batch.of(torch.full((rows, length), CLEAN))
    return objective.corrupt(batch, LogLinear(), noise, SimpleNamespace(vocab_size=vocabulary, mask_token_id=MASK))


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """The distance of Pearson's statistic from its mean, in standard deviations; `counts` has size - 1 freedoms."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedoms = counts.size - 1
    return float((statistic - freedoms) / (2 * freedoms) ** 0.5)


def test_shares_are_those_of_bert():
    made = corrupt(MLM(), 512, 256)
    chosen, z, count = made.predicted, made.z, 512 * 256
    masked, changed = (z == MASK) & chosen, (z != CLEAN) & (z != MASK) & chosen
    assert not ((z != CLEAN) & ~chosen).any()
    for found, share in ((chosen, 0.15), (masked, 0.15 * (0.8 + 0.1 / 29)), (changed, 0.015 * 27 / 29)):
        assert abs(int(found.sum()) - count * share) < 4 * (count * share) ** 0.5


@pytest.mark.parametrize(
    "shares", [{"rate": 0.15, "masked": 0.0, "random": 1.0}, {"rate": 0.9, "masked": 0.5, "random": 0.5}]
)
def test_random_tokens_are_uniform_over_the_vocabulary(shares):
    made = corrupt(MLM(**shares), 1024, 256)
    share = shares["random"]
    counts = np.bincount(made.z[made.predicted].numpy(), minlength=VOCABULARY).astype(float)
    total = int(made.predicted.sum())
    if share < 1:
        counts[MASK] -= total * shares["masked"]  # its mean; the spread of this count alone is larger, so leave it out
        counts = np.delete(counts, MASK)
    expected = total * share / VOCABULARY
    assert abs(chi_square(counts, expected)) < 5


def test_every_token_of_a_large_vocabulary_is_equally_likely():
    """Uniforms are multiples of 2^-24: without the shift by time some tokens would have more of them than others."""
    rate, vocabulary, rows = 0.002, 10_000, 200
    objective = MLM(rate=rate, masked=0.0, random=1.0)
    u = torch.arange(int(rate * 2**24), dtype=torch.float64).div(2**24).float()  # all uniforms that choose a token
    assert len(u) / vocabulary < 4
    config = SimpleNamespace(vocab_size=vocabulary, mask_token_id=MASK)
    batch = Batch.of(torch.full((1, len(u)), CLEAN))
    counts = np.zeros(vocabulary)
    for row in range(rows):
        noise = Noise(torch.tensor([(row + 0.5) / rows]), u[None])
        counts += np.bincount(objective.corrupt(batch, LogLinear(), noise, config).z[0].numpy(), minlength=vocabulary)
    mean = rows * len(u) / vocabulary
    assert abs(counts.sum() - rows * len(u)) < 1
    assert counts.std() / mean < 0.02


def test_random_tokens_of_two_rows_or_positions_are_independent():
    objective, pairs, neighbours = MLM(rate=0.9, masked=0.0, random=1.0), [], []
    for step in range(8):
        made = corrupt(objective, 256, 128, step)
        z, chosen = made.z, made.predicted
        for apart in (1, 2, 128):  # rows that are neighbours in the batch, or whose times are
            first, second = slice(None, -apart), slice(apart, None)
            both = chosen[first] & chosen[second]
            pairs.append(torch.stack([z[first][both], z[second][both]]))
        both = chosen[:, :-1] & chosen[:, 1:]
        neighbours.append(torch.stack([z[:, :-1][both], z[:, 1:][both]]))
    for found in (pairs, neighbours):
        first, second = torch.cat(found, dim=1).numpy()
        counts = np.bincount(first * VOCABULARY + second, minlength=VOCABULARY**2).astype(float)
        assert abs(chi_square(counts, len(first) / VOCABULARY**2)) < 5
