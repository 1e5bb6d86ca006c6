"""Schedules against their raw shapes in sixty digits, the learned schedule, and low-discrepancy times."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import pytest
import torch
from scipy import stats

from unmask import registry
from unmask.errors import UnmaskError
from unmask.random import Purpose
from unmask.schedules import KNOT_GRID, KNOTS, Learned, draw_times, low_discrepancy, van_der_corput

getcontext().prec = 60
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
TIMES = [1e-7, 1e-5, 1e-3, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999]


def cosine(x: Decimal) -> Decimal:
    term, total = Decimal(1), Decimal(1)
    for k in range(1, 40):
        term *= -x * x / ((2 * k - 1) * 2 * k)
        total += term
    return total


def geometric(t: Decimal, sigma_min: str = "1e-3", sigma_max: str = "20") -> Decimal:
    return (-(Decimal(sigma_min) ** (1 - t)) * Decimal(sigma_max) ** t).exp()


RAW = {
    "loglinear": lambda t: 1 - t,
    "cosine": lambda t: cosine(PI * t / 2),
    "cosine-squared": lambda t: cosine(PI * t / 2) ** 2,
    "linear-sigma": lambda t: (-10 * t).exp(),
    "geometric": geometric,
    "polynomial": lambda t: 1 - t**2,
    "learned": lambda t: 1 - t**2,
}
WITH_OPTIONS = [
    ({"name": "polynomial", "power": 3.0}, lambda t: 1 - t**3),
    ({"name": "linear-sigma", "sigma_max": 2.0}, lambda t: (-2 * t).exp()),
    ({"name": "geometric", "sigma_min": 0.1, "sigma_max": 2.0}, lambda t: geometric(t, "0.1", "2")),
]
SCHEDULES = [({"name": name}, raw) for name, raw in RAW.items()] + WITH_OPTIONS


def exact(raw, t: float) -> tuple[float, float]:
    """The mask rate 1 - alpha and the weight -alpha'/(1 - alpha) of a raw shape rescaled to the ends."""
    time, h = Decimal(t), Decimal("1e-25")
    span = raw(Decimal(0)) - raw(Decimal(1))
    rate = (raw(Decimal(0)) - raw(time)) / span
    slope = (raw(time - h) - raw(time + h)) / (2 * h) / span
    return float(rate), float(slope / rate)


def test_every_schedule_has_a_raw_shape_here():
    assert set(RAW) == set(registry.names("schedule"))


@pytest.mark.parametrize(("spec", "raw"), SCHEDULES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 3e-5)])
def test_values_are_those_of_the_raw_shape(spec, raw, dtype, tolerance):
    schedule = registry.build("schedule", spec)
    for t in torch.tensor(TIMES, dtype=dtype):
        rate, weight = exact(raw, t.item())
        assert schedule.mask_rate(t).item() == pytest.approx(rate, rel=tolerance)
        assert schedule.weight(t).item() == pytest.approx(weight, rel=tolerance)
        assert schedule.dalpha(t).item() == pytest.approx(-weight * rate, rel=tolerance)
        assert schedule.alpha(t).item() == pytest.approx(1 - rate, abs=tolerance)
        if t < 0.999:
            time = schedule.time_at(torch.tensor(rate, dtype=torch.float64))
            assert time.item() == pytest.approx(t.item(), rel=1e-6)


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_are_exact(name, dtype):
    schedule = registry.build("schedule", name)
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    assert schedule.mask_rate(ends).tolist() == [0.0, 1.0]
    assert schedule.alpha(ends).tolist() == [1.0, 0.0]
    assert schedule.time_at(ends).tolist() == [0.0, 1.0]
    assert schedule.weight(ends).isfinite().all()


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


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12, 100, 512])
def test_van_der_corput_is_a_permutation(size):
    assert van_der_corput(size).sort().values.tolist() == list(range(size))


def test_van_der_corput_reverses_the_bits():
    assert van_der_corput(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert van_der_corput(6).tolist() == [0, 3, 2, 5, 1, 4]


@pytest.mark.parametrize("size", [64, 512])
@pytest.mark.parametrize("micro", [2, 4, 8, 32])
def test_aligned_micro_batches_hit_every_coarse_stratum_once(size, micro):
    coarse = van_der_corput(size) * micro // size
    for part in coarse.split(micro):
        assert part.sort().values.tolist() == list(range(micro))


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


def test_each_time_is_uniform_over_steps_and_seeds():
    many = torch.arange(4000)
    for index in (0, 3, 7):
        here = torch.full_like(many, index)
        for t in (draw_times(0, many, here, 8), draw_times(many, 0, here, 8)):
            assert stats.kstest(t.numpy(), "uniform").pvalue > 1e-3


def test_steps_seeds_and_purposes_have_different_offsets():
    index = torch.arange(4)
    first = draw_times(0, 0, index, 4)
    for other in (draw_times(0, 1, index, 4), draw_times(1, 0, index, 4), draw_times(0, 0, index, 4, Purpose.OFFSET)):
        assert not torch.equal(first, other)


def test_times_wrap_around_at_one():
    t = low_discrepancy(torch.tensor(0.75), torch.arange(4), 4)
    assert t.tolist() == [0.75, 0.0, 0.25, 0.5]
    largest = low_discrepancy(torch.tensor(1 - 2.0**-24), torch.arange(4096), 4096)
    assert ((largest >= 0) & (largest < 1)).all()
