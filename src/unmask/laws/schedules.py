"""The laws of schedules, and of the posterior of the process. A schedule is checked against its own alpha."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from unmask.laws.base import Check, law, max_abs
from unmask.laws.exact import bayes_posterior, time_quadrature
from unmask.process import posterior, reveal_probability
from unmask.schedules import MIN_TIME, Schedule

TIMES = torch.cat([10.0 ** torch.arange(-7, -2, dtype=torch.float64), torch.linspace(0.01, 0.999, 45).double()])
ULP = torch.finfo(torch.float32).eps


@law("schedule")
def alpha_falls_from_one_to_zero(schedule: Schedule) -> Iterator[Check]:
    """alpha(0) = 1 and alpha(1) = 0 to a few units in the last place of float32, and alpha never rises."""
    ends = torch.tensor([0.0, 1.0])
    yield Check(max_abs(schedule.mask_rate(ends) - ends), 2 * ULP, "mask rate at t = 0 and 1 minus 0 and 1")
    yield Check(max_abs(schedule.time_at(ends) - ends), 4 * ULP, "time at mask rate 0 and 1 minus 0 and 1")
    t = torch.linspace(0, 1, 4097)
    alpha, time = schedule.alpha(t), schedule.time_at(t)
    yield Check(float(alpha.diff().max().clamp_min(0)), ULP, "largest rise of alpha on a grid")
    outside = torch.stack([alpha - 1, -alpha, time - 1, -time])
    yield Check(float(outside.max()), 0.0, "distance of alpha or the inverse from [0, 1]")


@law("schedule")
def dalpha_is_the_derivative_of_alpha(schedule: Schedule) -> Iterator[Check]:
    """dalpha equals the derivative by autograd and by a difference quotient, and it integrates to -1."""
    t = TIMES.clone().requires_grad_()
    (slope,) = torch.autograd.grad(-schedule.mask_rate(t).sum(), t)
    # the floor is for flat parts of alpha, where differences lose digits
    yield Check(_relative(schedule.dalpha(TIMES), slope, 1e-6), 1e-7, "dalpha against autograd, relative")
    breakpoints = torch.tensor(schedule.breakpoints(), dtype=TIMES.dtype)
    t = TIMES[((TIMES[:, None] - breakpoints).abs() > 2e-4 * TIMES[:, None]).all(dim=1)]
    h = 1e-4 * t
    quotient = (schedule.mask_rate(t - h) - schedule.mask_rate(t + h)) / (2 * h)
    yield Check(_relative(schedule.dalpha(t), quotient, 1e-6), 1e-4, "dalpha against a difference quotient, relative")
    node, weight = time_quadrature(schedule.breakpoints())
    integral = (weight * schedule.dalpha(node)).sum()
    yield Check(abs(float(integral) + 1.0), 1e-6, "integral of dalpha, against -1")


@law("schedule")
def weight_equals_eq_10(schedule: Schedule) -> Iterator[Check]:
    """w = -alpha'/(1 - alpha), finite at both ends, and as accurate in float32 as in float64, also near t = 0."""
    exact = -schedule.dalpha(TIMES) / schedule.mask_rate(TIMES)
    yield Check(_relative(schedule.weight(TIMES), exact), 1e-9, "weight against -alpha'/(1 - alpha), relative")
    short = TIMES.float()
    for name in ("weight", "mask_rate"):
        function = getattr(schedule, name)
        error = _relative(function(short).double(), function(short.double()))
        yield Check(error, 2e-5, f"{name} in float32 against float64, relative")
    ends = schedule.weight(torch.tensor([0.0, MIN_TIME, 1.0]))
    yield Check(float((~ends.isfinite()).sum() + (ends < 0).sum()), 0, "weights at the ends that are not finite")


@law("schedule")
def time_at_inverts_the_mask_rate(schedule: Schedule) -> Iterator[Check]:
    """mask_rate(time_at(v)) = v in float64 and, for every v that a float32 uniform can have, nearly so in float32."""
    v = TIMES
    yield Check(_relative(schedule.mask_rate(schedule.time_at(v)), v), 1e-8, "mask rate at the time of v, relative")
    back = schedule.time_at(schedule.mask_rate(TIMES))
    steep = schedule.dalpha(TIMES).abs() > 1e-6
    yield Check(_relative(back[steep], TIMES[steep]), 1e-7, "time at the mask rate of t, relative")
    yield Check(max_abs(schedule.inverse(schedule.alpha(v)) - back), 1e-4, "inverse of alpha against that of the rate")
    v = torch.cat([torch.tensor([2.0**-33, 2.0**-20, 1 - 2.0**-24]), torch.linspace(0.001, 0.999, 999)])
    yield Check(max_abs(schedule.mask_rate(schedule.time_at(v)) - v), 8 * ULP, "the same in float32, absolute")


@law("schedule")
def posterior_equals_bayes_rule(schedule: Schedule) -> Iterator[Check]:
    """process.posterior equals Bayes' rule with transition matrices for all tokens and a few pairs s < t (law 6)."""
    V, mask = 4, 1
    tokens = torch.tensor([0, 2, 3])
    masks = torch.full_like(tokens, mask)
    x = torch.nn.functional.one_hot(tokens, V).double()
    worst = 0.0
    for s, t in ((0.0, 0.3), (0.0, 1.0), (0.2, 0.21), (0.3, 0.8), (0.5, 1.0)):
        rate_s, rate_t = schedule.mask_rate(torch.tensor([s, t], dtype=torch.float64))
        for z_t in (tokens, masks):
            closed_form = posterior(z_t, x, float(rate_s), float(rate_t), mask)
            worst = max(worst, max_abs(closed_form - bayes_posterior(x, z_t, rate_s, rate_t, mask)))
        reveal = bayes_posterior(x, masks, rate_s, rate_t, mask)[0, 0]
        worst = max(worst, abs(float(reveal_probability(rate_s, rate_t) - reveal)))
    yield Check(worst, 1e-12, "posterior against Bayes' rule")


def _relative(value: Tensor, exact: Tensor, floor: float = 1e-30) -> float:
    return float(((value - exact).abs() / exact.abs().clamp_min(floor)).max())
