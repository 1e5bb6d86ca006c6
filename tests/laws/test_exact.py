"""The enumerations that laws rely on, against independent ones."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from unmask.laws import exact, tables
from unmask.schedules import LogLinear

ALL = torch.ones(3, dtype=torch.bool)


def test_subset_recursion_is_the_mean_over_all_orders():
    table, text = tables.random_table(seed=3), torch.tensor([2, 0, 3])
    likelihood = bound = 0.0
    for order in itertools.permutations(range(3)):
        z, log_p = torch.full((1, 3), 1), 0.0
        for position in order:
            log_p += float(exact.log_conditionals(table, z, 0.5)[0, position, text[position]])
            z[0, position] = text[position]
        likelihood += math.exp(log_p) / 6
        bound -= log_p / 6
    found = exact.any_order(table, text[None], ALL)
    assert float(found.nll) == pytest.approx(-math.log(likelihood), abs=1e-10)
    assert float(found.bound) == pytest.approx(bound, abs=1e-10)
    assert found.canvases == 8


@pytest.mark.parametrize("conditioned", [False, True])
def test_bound_of_the_recursion_is_the_integral_over_time(conditioned):
    table = tables.random_table(seed=2, conditioned=conditioned)
    texts, targets = torch.tensor([[2, 0, 3], [0, 0, 2]]), torch.tensor([True, False, True])
    found = exact.any_order(table, texts, targets)
    expected = exact.continuous_bound(table, texts, targets).sum(dim=1)
    assert torch.allclose(found.bound, expected, atol=1e-7)
    assert bool((found.bound > found.nll).all())
    assert found.canvases == 2 * 4 * (exact.RATE_NODES if conditioned else 1)


@pytest.mark.parametrize("conditioned", [False, True])
def test_chunks_change_nothing(conditioned, monkeypatch):
    table, text = tables.random_table(seed=2, conditioned=conditioned), torch.tensor([[2, 0, 3]])
    whole = exact.any_order(table, text, ALL)
    monkeypatch.setattr(exact, "TOKENS_AT_ONCE", 9)
    recording = tables.RecordingDenoiser(table)
    chunked = exact.any_order(recording, text, ALL)
    assert max(len(ids) for ids in recording.calls) == 3
    assert (float(chunked.nll), float(chunked.bound)) == (float(whole.nll), float(whole.bound))


def test_clock_of_a_conditioned_denoiser_is_the_limit_of_many_steps():
    table = tables.random_table(seed=2, conditioned=True)
    start = torch.full((3,), 1)
    texts = exact.outcomes(start, 4, 1)
    limit = (-exact.any_order(table, texts, ALL).nll).exp()
    gaps = []
    for steps in (64, 128):
        found = exact.step_distribution(table, start, exact.grid_rates(LogLinear(), steps))
        gaps.append(found[tables.canvas_index(texts, 4)] - limit)
    assert float((2 * gaps[1] - gaps[0]).abs().max()) < 1e-4


def test_oracles_have_the_conditionals_of_their_distribution():
    data = tables.random_data()
    table, causal = data.oracle(), data.causal_oracle()
    joint = data.joint.view(4, 4, 4).permute(2, 1, 0)
    given = exact.log_conditionals(table, torch.tensor([[1, 2, 1]]), 0.5).exp()[0]
    assert torch.allclose(given[0], joint[:, 2].sum(dim=1) / joint[:, 2].sum())
    assert torch.allclose(given[2], joint[:, 2].sum(dim=0) / joint[:, 2].sum())
    row = causal.head(causal.hidden(torch.tensor([[1, 3, 0]]))[:, -1]).softmax(dim=-1)[0]
    assert torch.allclose(row, joint[3, 0] / joint[3, 0].sum())


def test_too_many_targets_are_refused():
    with pytest.raises(ValueError, match="at most 8 target positions, got 9"):
        exact.any_order(tables.random_table(), torch.zeros(1, 9, dtype=torch.long), torch.ones(9, dtype=torch.bool))
