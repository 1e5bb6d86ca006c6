"""Schedules against their raw shapes in fifty digits, and what a recipe may and may not say about them."""

from __future__ import annotations

from decimal import Decimal, getcontext
from fractions import Fraction

import pytest
import torch

from unmask import registry
from unmask.errors import UnmaskError
from unmask.schedules import LogLinear

getcontext().prec = 60
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
TIMES = [1e-7, 1e-5, 1e-3, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999]


def cosine(x: Decimal) -> Decimal:
    term, total = Decimal(1), Decimal(1)
    for k in range(1, 40):
        term *= -x * x / ((2 * k - 1) * 2 * k)
        total += term
    return total


def geometric(t: Decimal, smallest: Decimal = Decimal("1e-3"), largest: Decimal = Decimal(20)) -> Decimal:
    return (-(smallest ** (1 - t)) * largest**t).exp()


RAW = {
    "loglinear": lambda t: 1 - t,
    "cosine": lambda t: cosine(PI * t / 2),
    "cosine-squared": lambda t: cosine(PI * t / 2) ** 2,
    "linear-sigma": lambda t: (-10 * t).exp(),
    "geometric": geometric,
    "polynomial": lambda t: 1 - t**2,
    "learned": lambda t: 1 - t**2,
}


def exact(name: str, t: float) -> tuple[float, float]:
    """The mask rate 1 - alpha and the weight -alpha'/(1 - alpha) of a raw shape rescaled to the ends."""
    raw, time, h = RAW[name], Decimal(t), Decimal("1e-25")
    span = raw(Decimal(0)) - raw(Decimal(1))
    rate = (raw(Decimal(0)) - raw(time)) / span
    slope = (raw(time - h) - raw(time + h)) / (2 * h) / span
    return float(rate), float(slope / rate)


def test_every_schedule_has_a_raw_shape_here():
    assert set(RAW) == set(registry.names("schedule"))


@pytest.mark.parametrize("name", list(RAW))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 3e-5)])
def test_rate_and_weight_are_those_of_the_raw_shape(name, dtype, tolerance):
    schedule = registry.build("schedule", name)
    for t in torch.tensor(TIMES, dtype=dtype):
        rate, weight = exact(name, t.item())
        assert schedule.mask_rate(t).item() == pytest.approx(rate, rel=tolerance)
        assert schedule.weight(t).item() == pytest.approx(weight, rel=tolerance)
        assert schedule.dalpha(t).item() == pytest.approx(-weight * rate, rel=tolerance)
        assert schedule.alpha(t).item() == pytest.approx(1 - rate, abs=tolerance)


@pytest.mark.parametrize("name", list(RAW))
def test_times_at_are_those_of_the_raw_shape(name):
    schedule = registry.build("schedule", name)
    for t in TIMES[:-1]:
        rate, _ = exact(name, t)
        assert schedule.time_at(torch.tensor(rate, dtype=torch.float64)).item() == pytest.approx(t, rel=1e-6)


@pytest.mark.parametrize("name", registry.names("schedule"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ends_are_exact(name, dtype):
    schedule = registry.build("schedule", name)
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    assert schedule.mask_rate(ends).tolist() == [0.0, 1.0]
    assert schedule.alpha(ends).tolist() == [1.0, 0.0]
    assert schedule.time_at(ends).tolist() == [0.0, 1.0]
    assert schedule.weight(ends).isfinite().all()


def test_loglinear_weight_is_one_over_t():
    assert LogLinear().weight(torch.tensor([0.25])).item() == 4.0


@pytest.mark.parametrize("power", [Fraction(1, 2), Fraction(1), Fraction(3)])
def test_polynomial_takes_its_power(power):
    schedule = registry.build("schedule", {"name": "polynomial", "power": float(power)})
    t = torch.tensor([0.2, 0.6], dtype=torch.float64)
    assert torch.allclose(schedule.alpha(t), 1 - t ** float(power))
    assert torch.allclose(schedule.weight(t), float(power) / t)


def test_options_change_the_shape():
    t = torch.tensor(0.5, dtype=torch.float64)
    gentle = registry.build("schedule", {"name": "linear-sigma", "sigma_max": 2.0})
    assert gentle.mask_rate(t).item() == pytest.approx(float((1 - (Decimal(-1)).exp()) / (1 - (Decimal(-2)).exp())))
    narrow = registry.build("schedule", {"name": "geometric", "sigma_min": 0.1, "sigma_max": 2.0})
    a = [float(geometric(Decimal(x), Decimal("0.1"), Decimal(2))) for x in (0, 0.5, 1)]
    assert narrow.alpha(t).item() == pytest.approx((a[1] - a[2]) / (a[0] - a[2]))


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "polynomial", "power": 0},
        {"name": "polynomial", "power": 17},
        {"name": "linear-sigma", "sigma_max": 100},
        {"name": "geometric", "sigma_min": 3, "sigma_max": 2},
        {"name": "geometric", "sigma_min": 0},
        {"name": "polynomial", "power": "steep"},
    ],
)
def test_what_makes_no_schedule_is_refused(spec):
    with pytest.raises(UnmaskError, match=spec["name"]):
        registry.build("schedule", spec)
