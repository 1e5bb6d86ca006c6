"""Ancestral sampling: reveal times, steps that cost nothing, and what the network sees."""

from __future__ import annotations

import pytest
import torch

from tests.samplers.test_base import MASK, blank
from unmask import registry
from unmask.errors import UnmaskError
from unmask.laws.tables import ConstantDenoiser, RecordingDenoiser
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, sample


def flat(vocab_size: int = 5) -> ConstantDenoiser:
    """A network with equal logits."""
    return ConstantDenoiser(torch.zeros(vocab_size, dtype=torch.float64), MASK)


def test_steps_merge_calls_and_never_reorder_them():
    fine, time = AncestralSampler().reveal_calls(blank(20, 8))
    coarse, coarse_time = AncestralSampler(steps=3).reveal_calls(blank(20, 8))
    for row in range(20):
        assert (coarse[row][fine[row].argsort()].diff() >= 0).all()
        assert torch.equal(coarse_time[row, coarse[row]], torch.ceil(time[row, fine[row]] * 3) / 3)


@pytest.mark.parametrize(("steps", "length"), [(4, 4), (16, 8), (8, 32)])
def test_empty_steps_cost_no_call(steps, length):
    """T equally likely steps and L positions need T (1 - (1 - 1/T)^L) calls on average."""
    calls = AncestralSampler(steps=steps).begin(blank(4000, length)).calls.double()
    expected = steps * (1 - (1 - 1 / steps) ** length)
    assert abs(float(calls.mean()) - expected) < 4 * float(calls.std()) / 4000**0.5
    assert calls.max() <= min(steps, length)


def test_given_tokens_do_not_change_the_order_of_the_others():
    ids = blank(1, 6).ids.clone()
    ids[0, 2] = 3
    whole, part = (AncestralSampler().reveal_calls(Canvas.of(x, MASK))[0][0] for x in (blank(1, 6).ids, ids))
    others = torch.tensor([0, 1, 3, 4, 5])
    assert part[2] == -1
    assert torch.equal(whole[others].argsort(), part[others].argsort())


def test_finished_sequences_are_left_out_once_half_are_done():
    ids = torch.full((5, 4), MASK)
    ids[0, 1:], ids[1], ids[3, 2:] = 2, 3, 2
    denoiser = RecordingDenoiser(flat())
    state = sample(AncestralSampler(), denoiser, Canvas.of(ids, MASK))
    assert state.calls.tolist() == [1, 0, 4, 2, 4]
    assert [len(call) for call in denoiser.calls] == [5, 5, 2, 2]
    alone = sample(AncestralSampler(), flat(), Canvas.of(ids[4:], MASK, seed=4))
    assert torch.equal(alone.ids[0], state.ids[4])


def test_the_network_gets_the_alpha_of_each_call():
    sampler = AncestralSampler(steps=4, schedule=registry.build("schedule", "cosine"))
    denoiser, state = RecordingDenoiser(flat()), sampler.begin(blank(1, 6))
    sample(sampler, denoiser, blank(1, 6))
    alphas = torch.cat(denoiser.alphas)
    assert torch.allclose(alphas, sampler.schedule.alpha(state.plan.time[0, : state.total]))
    grid = sampler.schedule.alpha(torch.arange(5) / 4)
    assert all((grid - alpha).abs().min() < 1e-6 for alpha in alphas)


def test_the_largest_number_of_steps_writes_every_position():
    state = sample(AncestralSampler(steps=10**6), flat(), blank(2, 6))
    assert (state.ids != MASK).all()
    assert state.calls.tolist() == [6, 6]


@pytest.mark.parametrize("axis", ["sampler", "objective"])
def test_the_number_of_steps_is_bounded(axis):
    for name in registry.names(axis):
        if "steps" in registry.get(axis, name).model_fields:
            assert registry.build(axis, {"name": name, "steps": 10**6}).steps == 10**6
            for steps in (0, 10**6 + 1):
                with pytest.raises(UnmaskError, match="steps must be"):
                    registry.build(axis, {"name": name, "steps": steps})
