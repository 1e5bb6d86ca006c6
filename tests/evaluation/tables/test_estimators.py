"""The bound does not depend on the schedule, and each step of the derivation keeps or lowers it."""

from __future__ import annotations

import math

import pytest
import torch

from unmask.evaluation.tables.estimators import PUBLISHED_BY_STEPS, SCHEDULES, gradient_variance, loss_variance
from unmask.objectives.base import LossTerms
from unmask.process import Batch
from unmask.schedules import LogLinear


def within(one, other, errors=4.0):
    return abs(one.value - other.value) <= errors * math.hypot(one.errors["mc"], other.errors["mc"])


def test_schedules_share_their_bound(reproduce, monkeypatch):
    for name in ("cosine-squared", "geometric", "polynomial"):
        monkeypatch.delitem(SCHEDULES, name)
    table = reproduce("schedules", samples=8)
    assert list(table.rows) == list(SCHEDULES)
    first = table.rows["log-linear"]
    for row in table.rows.values():
        assert within(row["perplexity"], first["perplexity"])
        assert row["gradient variance"].value > 0
        assert row["trained with it: perplexity"].bound
    variance = {name: row["variance per datapoint"].value for name, row in table.rows.items()}
    assert variance["linear"] > 2 * max(variance["cosine"], variance["log-linear"])


def test_every_step_of_the_derivation_keeps_or_lowers_the_bound(reproduce):
    table = reproduce("rao-blackwell", samples=8)
    sampled, d3pm, zero_masking, carry_over, continuous, count = (row["perplexity"] for row in table.rows.values())
    assert within(sampled, d3pm)
    assert d3pm.value >= zero_masking.value > carry_over.value
    assert within(carry_over, continuous)
    assert within(continuous, count)
    variances = [row["variance per datapoint"].value for row in table.rows.values()]
    assert variances[0] > 2 * variances[1]
    assert variances[-2] > variances[-1]


def test_the_bound_falls_with_the_steps(reproduce, monkeypatch):
    for label in ("20", "50", "100", "200", "500"):
        monkeypatch.delitem(PUBLISHED_BY_STEPS, label)
    table = reproduce("steps")
    assert list(table.rows) == ["10", "1000", "∞", "data"]
    assert {"judge perplexity", "entropy"} == set(table.rows["data"])
    cells = [row["perplexity"] for row in table.rows.values() if "perplexity" in row]
    assert cells[0].value > cells[-1].value - 4 * cells[0].errors["mc"]
    assert within(cells[-2], cells[-1])
    assert table.published["∞"] == {"perplexity": 23.05}
    assert {curve.axis for curve in table.curves} == {"perplexity", "judge perplexity", "entropy"}


class TimesWeight:
    """An objective whose loss at every position is the time of its sequence times the only weight."""

    def loss(self, denoiser, batch, schedule, noise):
        nelbo = noise.t[:, None] * denoiser.weight * batch.target_mask
        zero = torch.zeros_like(nelbo)
        return LossTerms(nelbo, zero, zero, batch.target_mask, zero, nelbo.sum())


def test_variances_match_their_closed_forms():
    size, scale = 8, 3.0
    network = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(network.weight, scale)
    batches = [Batch.of(torch.zeros(size, 5, dtype=torch.long)) for _ in range(2)]
    value, error = loss_variance(network, TimesWeight(), LogLinear(), batches, 200)
    assert value == pytest.approx(scale**2 / 12, abs=4 * error)
    for stratified, expected in ((False, 1 / (12 * size)), (True, 1 / (12 * size**2))):
        value, error = gradient_variance(network, TimesWeight(), LogLinear(), batches, 400, stratified)
        assert error < expected / 5
        assert value == pytest.approx(expected, abs=4 * error)
