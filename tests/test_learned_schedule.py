"""The learned schedule: what its knots mean, and which knots there cannot be."""

from __future__ import annotations

import math

import pytest
import torch

from unmask import registry
from unmask.errors import UnmaskError
from unmask.schedules import KNOT_GRID, KNOTS, Learned

WAVES = [1.3 + math.sin(k / 4) for k in range(KNOTS)]


def test_mask_rate_at_the_knots_is_k_over_64_squared():
    schedule = Learned().with_density(WAVES)
    should = (torch.arange(1, KNOTS + 1).double() / KNOTS).square()
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        times = torch.tensor(schedule.times, dtype=dtype)
        assert torch.allclose(schedule.mask_rate(times).double(), should, rtol=tolerance, atol=0)
        assert torch.allclose(schedule.time_at(should.to(dtype)), times, rtol=tolerance, atol=0)
    assert schedule.mask_rate(times[-1:]).item() == 1.0


def test_uniform_times_have_the_asked_density():
    schedule = Learned().with_density(WAVES)
    t = (torch.arange(1 << 16) + 0.5) / (1 << 16)
    counts = torch.histc(schedule.mask_rate(t).sqrt(), bins=KNOTS, min=0, max=1)
    should = torch.tensor(WAVES) / sum(WAVES)
    assert torch.allclose(counts / len(t), should, atol=4e-5)


def test_weight_is_one_over_density_and_mask_rate():
    schedule = Learned().with_density(WAVES)
    t = torch.linspace(0.003, 0.99, 50, dtype=torch.float64)
    u = schedule.mask_rate(t)
    stretch = (KNOTS * u.sqrt()).long()
    density = (torch.tensor(WAVES).double() / sum(WAVES))[stretch] * KNOTS / (2 * u.sqrt())
    assert torch.allclose(schedule.weight(t), 1 / (density * u), rtol=1e-3)


def test_no_stretch_is_left_empty_and_weights_stay_bounded():
    schedule = Learned().with_density([1.0] + [0.0] * 63)
    shares = torch.tensor((0.0, *schedule.times)).diff()
    assert shares.min() > 0.85 / 512
    assert shares[0] == pytest.approx(1 / (1 + 63 / 512), abs=1e-5)
    u = schedule.mask_rate(torch.linspace(0.001, 1, 999))
    assert (schedule.weight(torch.linspace(0.001, 1, 999)) * u).max() < 20


def test_learnt_knots_are_the_same_in_float32_and_float64():
    times = torch.tensor(Learned().with_density(WAVES).times, dtype=torch.float64)
    assert torch.equal(times.float().double(), times)
    assert torch.equal(times * KNOT_GRID, (times * KNOT_GRID).round())


def test_shaping_keeps_the_options():
    schedule = Learned(every=7, warmup=3, decay=0.5)
    assert schedule.with_density(WAVES).model_dump(exclude={"knots"}) == schedule.model_dump(exclude={"knots"})
    assert Learned().with_density([3.0] * KNOTS).times == Learned().times


def test_bends_are_where_the_slope_jumps():
    schedule = Learned().with_density(WAVES)
    bends = torch.tensor(schedule.breakpoints(), dtype=torch.float64)
    jump = (schedule.dalpha(bends + 1e-9) / schedule.dalpha(bends - 1e-9)).log().abs()
    assert len(bends) == KNOTS - 1
    assert jump.median() > 0.05
    assert ((schedule.dalpha(bends + 1e-6) / schedule.dalpha(bends + 2e-6)) - 1).abs().max() < 1e-2


def test_what_was_made_without_gradients_may_be_used_with_them():
    schedule = Learned().with_density([1.0 + 0.01 * k for k in range(KNOTS)])
    with torch.inference_mode():
        schedule.mask_rate(torch.rand(3))
    t = torch.rand(3).requires_grad_()
    schedule.mask_rate(t).sum().backward()
    assert torch.allclose(t.grad, -schedule.dalpha(t.detach()), rtol=1e-5)


RISING = [(k + 1) / KNOTS for k in range(KNOTS)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"knots": RISING[1:]}, "64 times"),
        ({"knots": [*RISING[:-1], 0.999]}, "64 times that end at 1"),
        ({"knots": [RISING[1], *RISING[1:]]}, "increase from 0 by at least 1/1024"),
        ({"knots": [1e-4, *RISING[1:]]}, "increase from 0"),
        ({"knots": [math.nan, *RISING[1:]]}, "increase from 0"),
        ({"every": 0}, "every must be .*, got 0"),
        ({"decay": 1.0}, "decay must be .*, got 1.0"),
    ],
)
def test_what_makes_no_learned_schedule_is_refused(options, said):
    with pytest.raises(UnmaskError, match=f"schedule 'learned': .*{said}"):
        registry.build("schedule", {"name": "learned", **options})
