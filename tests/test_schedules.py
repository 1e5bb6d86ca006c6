"""Schedules against their closed forms, the learned schedule, and low-discrepancy times. Laws check the rest."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from unmask import registry
from unmask.errors import UnmaskError
from unmask.schedules import KNOT_GRID, KNOTS, Learned, draw_times, low_discrepancy, van_der_corput


def geometric_rate(t: float, sigma_min: float = 1e-3, sigma_max: float = 20.0) -> float:
    return math.expm1(sigma_min - sigma_min ** (1 - t) * sigma_max**t) / math.expm1(sigma_min - sigma_max)


MASK_RATES = {
    "loglinear": lambda t: t,
    "cosine": lambda t: 2 * math.sin(math.pi * t / 4) ** 2,
    "cosine-squared": lambda t: math.sin(math.pi * t / 2) ** 2,
    "linear-sigma": lambda t: math.expm1(-10 * t) / math.expm1(-10),
    "geometric": geometric_rate,
    "polynomial": lambda t: t**2,
    "learned": lambda t: t**2,
}
WITH_OPTIONS = [
    ({"name": "polynomial", "power": 3.0}, lambda t: t**3),
    ({"name": "linear-sigma", "sigma_max": 2.0}, lambda t: math.expm1(-2 * t) / math.expm1(-2)),
    ({"name": "geometric", "sigma_min": 0.1, "sigma_max": 2.0}, lambda t: geometric_rate(t, 0.1, 2.0)),
]


CLOSED_FORMS = [*MASK_RATES.items(), *WITH_OPTIONS]


@pytest.mark.parametrize(("spec", "rate"), CLOSED_FORMS, ids=[str(spec) for spec, _ in CLOSED_FORMS])
def test_the_mask_rate_is_the_closed_form(spec, rate):
    schedule = registry.build("schedule", spec)
    times = torch.tensor([1e-7, 1e-5, 1e-3, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999], dtype=torch.float64)
    expected = torch.tensor([rate(t) for t in times.tolist()], dtype=torch.float64)
    torch.testing.assert_close(schedule.mask_rate(times), expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(schedule.alpha(times), 1 - expected, rtol=0, atol=1e-12)
    assert set(MASK_RATES) == set(registry.names("schedule")), "every schedule has a closed form here"


INCREASING = [(k + 1) / KNOTS for k in range(KNOTS)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "polynomial", "power": 0}, "power"),
        ({"name": "polynomial", "power": 17}, "power"),
        ({"name": "polynomial", "power": "steep"}, "power"),
        ({"name": "linear-sigma", "sigma_max": 100}, "sigma_max"),
        ({"name": "geometric", "sigma_min": 3, "sigma_max": 2}, "sigma_min must be below sigma_max"),
        ({"name": "geometric", "sigma_min": 0}, "sigma_min"),
        ({"name": "learned", "knots": INCREASING[1:]}, "64 times that end at 1"),
        ({"name": "learned", "knots": [*INCREASING[:-1], 0.999]}, "64 times that end at 1"),
        ({"name": "learned", "knots": [INCREASING[1], *INCREASING[1:]]}, "increase from 0 by at least 1/1024"),
        ({"name": "learned", "knots": [1e-4, *INCREASING[1:]]}, "increase from 0"),
        ({"name": "learned", "knots": [math.nan, *INCREASING[1:]]}, "increase from 0"),
        ({"name": "learned", "every": 0}, "every"),
        ({"name": "learned", "decay": 1.0}, "decay"),
    ],
)
def test_bad_options_are_refused(spec, message):
    with pytest.raises(UnmaskError, match=message) as caught:
        registry.build("schedule", spec)
    assert spec["name"] in str(caught.value)


# ---- the learned schedule -------------------------------------------------------------------------------------------

DENSITY = [1.3 + math.sin(k / 4) for k in range(KNOTS)]


def test_mask_rate_at_the_knots_is_k_over_64_squared():
    schedule = Learned().with_density(DENSITY)
    expected = (torch.arange(1, KNOTS + 1).double() / KNOTS).square()
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        times = torch.tensor(schedule.times, dtype=dtype)
        assert torch.allclose(schedule.mask_rate(times).double(), expected, rtol=tolerance, atol=0)
        assert torch.allclose(schedule.time_at(expected.to(dtype)), times, rtol=tolerance, atol=0)
    assert schedule.mask_rate(times[-1:]).item() == 1.0


def test_uniform_times_have_the_given_density_and_the_weight_corrects_for_it():
    schedule, share = Learned().with_density(DENSITY), torch.tensor(DENSITY).double() / sum(DENSITY)
    t = (torch.arange(1 << 16) + 0.5) / (1 << 16)
    counts = torch.histc(schedule.mask_rate(t).sqrt(), bins=KNOTS, min=0, max=1)
    assert torch.allclose(counts.double() / len(t), share, atol=4e-5)
    t = torch.linspace(0.003, 0.99, 50, dtype=torch.float64)
    u = schedule.mask_rate(t)
    density = share[(KNOTS * u.sqrt()).long()] * KNOTS / (2 * u.sqrt())
    assert torch.allclose(schedule.weight(t), 1 / (density * u), rtol=1e-3)


def test_no_interval_is_left_empty_and_weights_stay_bounded():
    schedule = Learned().with_density([1.0] + [0.0] * 63)
    shares = torch.tensor((0.0, *schedule.times)).diff()
    assert shares.min() > 0.85 / 512
    assert shares[0] == pytest.approx(1 / (1 + 63 / 512), abs=1e-5)
    t = torch.linspace(0.001, 1, 999)
    assert (schedule.weight(t) * schedule.mask_rate(t)).max() < 20


def test_learned_knots_are_the_same_in_float32_and_float64_and_options_stay():
    schedule = Learned(every=7, warmup=3, decay=0.5)
    times = torch.tensor(schedule.with_density(DENSITY).times, dtype=torch.float64)
    assert torch.equal(times.float().double(), times)
    assert torch.equal(times * KNOT_GRID, (times * KNOT_GRID).round())
    assert schedule.with_density(DENSITY).model_dump(exclude={"knots"}) == schedule.model_dump(exclude={"knots"})
    assert Learned().with_density([3.0] * KNOTS).times == Learned().times


def test_breakpoints_are_where_the_slope_jumps():
    schedule = Learned().with_density(DENSITY)
    points = torch.tensor(schedule.breakpoints(), dtype=torch.float64)
    jump = (schedule.dalpha(points + 1e-9) / schedule.dalpha(points - 1e-9)).log().abs()
    assert len(points) == KNOTS - 1
    assert jump.median() > 0.05
    assert ((schedule.dalpha(points + 1e-6) / schedule.dalpha(points + 2e-6)) - 1).abs().max() < 1e-2


def test_cached_knots_from_inference_mode_have_gradients():
    schedule = Learned().with_density([1.0 + 0.01 * k for k in range(KNOTS)])
    with torch.inference_mode():
        schedule.mask_rate(torch.rand(3))
    t = torch.rand(3).requires_grad_()
    schedule.mask_rate(t).sum().backward()
    assert torch.allclose(t.grad, -schedule.dalpha(t.detach()), rtol=1e-5)


# ---- low-discrepancy times ------------------------------------------------------------------------------------------


def test_van_der_corput_reverses_the_bits():
    assert van_der_corput(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert van_der_corput(6).tolist() == [0, 3, 2, 5, 1, 4]
    for size in (1, 2, 3, 5, 12, 100, 512):
        assert van_der_corput(size).sort().values.tolist() == list(range(size))
    for part in (van_der_corput(512) * 8 // 512).split(8):
        assert part.sort().values.tolist() == list(range(8)), "an aligned micro-batch has a time in every eighth"


@pytest.mark.parametrize("size", [96, 100, 384])
def test_other_micro_batches_are_nearly_stratified(size):
    t = low_discrepancy(torch.tensor(0.0), van_der_corput(size), size)
    for part in t.split(size // 4):
        assert stats.kstest(part.numpy(), "uniform").statistic < 2.5 / len(part)


def test_times_are_evenly_spaced_whatever_the_micro_batches():
    t = draw_times(seed=1, step=3, index=torch.arange(64), batch_size=64)
    assert (t.sort().values.diff() - 1 / 64).abs().max() < 1e-6
    assert ((t >= 0) & (t < 1)).all()
    parts = [draw_times(seed=1, step=3, index=index, batch_size=64) for index in torch.arange(64).split(5)]
    assert torch.equal(t, torch.cat(parts))


def test_independent_times_are_not_evenly_spaced():
    t = draw_times(1, 3, torch.arange(4000), 4000, independent=True)
    assert stats.kstest(t.numpy(), "uniform").pvalue > 1e-3
    assert t.sort().values.diff().max() > 3 / 4000
    assert torch.equal(t[5:9], draw_times(1, 3, torch.arange(5, 9), 4000, independent=True))


def test_times_are_uniform_over_steps_and_seeds():
    many = torch.arange(4000)
    for index in (0, 3, 7):
        here = torch.full_like(many, index)
        for t in (draw_times(0, many, here, 8), draw_times(many, 0, here, 8)):
            assert stats.kstest(t.numpy(), "uniform").pvalue > 1e-3


def test_times_wrap_around_at_one():
    t = low_discrepancy(torch.tensor(0.75), torch.arange(4), 4)
    assert t.tolist() == [0.75, 0.0, 0.25, 0.5]
    largest = low_discrepancy(torch.tensor(1 - 2.0**-24), torch.arange(4096), 4096)
    assert ((largest >= 0) & (largest < 1)).all()
