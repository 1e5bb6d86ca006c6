"""Noise schedules alpha(t), the learned schedule included, and low-discrepancy times.

Every schedule is a raw shape a(t) rescaled to alpha(0) = 1 and alpha(1) = 0, so the prior term of the bound is exactly
zero. A schedule defines the mask rate 1 - alpha(t), the weight w(t) and the inverse of the mask rate, each in a form
that does not cancel near t = 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor
from typing_extensions import Self

from unmask.random import Integer, Purpose, uniform
from unmask.registry import Component

MIN_TIME = 2.0**-33
"""The smallest time at which w(t), which has a pole at 0, is evaluated: the smallest float of `random.uniform`."""


class Schedule(Component):
    """alpha(t), its derivative, its inverse and the weight of the bound. Times and results are float tensors."""

    @abstractmethod
    def mask_rate(self, t: Tensor) -> Tensor:
        """1 - alpha(t): the probability that a token is masked at time t, accurate even where it is tiny."""

    @abstractmethod
    def raw_weight(self, t: Tensor) -> Tensor:
        """w(t) for t > 0; `weight` handles the pole at 0."""

    @abstractmethod
    def time_at(self, mask_rate: Tensor) -> Tensor:
        """The inverse of `mask_rate`."""

    def alpha(self, t: Tensor) -> Tensor:
        """The probability that a token is visible at time t."""
        return 1.0 - self.mask_rate(t)

    def dalpha(self, t: Tensor) -> Tensor:
        """alpha'(t) <= 0."""
        t = t.clamp_min(MIN_TIME)
        return -self.weight(t) * self.mask_rate(t)

    def weight(self, t: Tensor) -> Tensor:
        """w(t) = -alpha'(t) / (1 - alpha(t)), eq. 10. No token is masked at its pole t = 0."""
        return self.raw_weight(t.clamp_min(MIN_TIME))

    def inverse(self, alpha: Tensor) -> Tensor:
        """The time t with this alpha(t)."""
        return self.time_at(1.0 - alpha)

    def breakpoints(self) -> tuple[float, ...]:
        """The times in (0, 1) at which alpha' jumps, in order; quadratures go from one to the next."""
        return ()


class LogLinear(Schedule):
    """a(t) = 1 - t, the schedule of the paper: w(t) = 1/t."""

    name: Literal["loglinear"] = "loglinear"

    def mask_rate(self, t: Tensor) -> Tensor:
        return t

    def raw_weight(self, t: Tensor) -> Tensor:
        return 1.0 / t

    def time_at(self, mask_rate: Tensor) -> Tensor:
        return mask_rate


class Cosine(Schedule):
    """a(t) = cos(pi t / 2)."""

    name: Literal["cosine"] = "cosine"

    def mask_rate(self, t: Tensor) -> Tensor:
        # the second form is exactly 1 at t = 1
        return torch.where(t < 0.5, 2.0 * torch.sin(math.pi / 4 * t).square(), 1.0 - torch.sin(math.pi / 2 * (1.0 - t)))

    def raw_weight(self, t: Tensor) -> Tensor:
        return math.pi / 2 / torch.tan(math.pi / 4 * t)

    def time_at(self, mask_rate: Tensor) -> Tensor:
        early = torch.asin((mask_rate / 2).sqrt()) * (4 / math.pi)
        return torch.where(mask_rate < 0.5, early, 1.0 - torch.asin(1.0 - mask_rate) * (2 / math.pi))


class CosineSquared(Schedule):
    """a(t) = cos(pi t / 2)^2."""

    name: Literal["cosine-squared"] = "cosine-squared"

    def mask_rate(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * t).square()

    def raw_weight(self, t: Tensor) -> Tensor:
        # cot(pi t / 2) as a tangent is exactly 0 at t = 1; the cotangent of a rounded pi/2 is not
        return math.pi * torch.tan(math.pi / 2 * (1.0 - t)).where(t > 0.5, 1.0 / torch.tan(math.pi / 2 * t))

    def time_at(self, mask_rate: Tensor) -> Tensor:
        late = 1.0 - torch.asin((1.0 - mask_rate).sqrt()) * (2 / math.pi)
        return torch.where(mask_rate < 0.5, torch.asin(mask_rate.sqrt()) * (2 / math.pi), late)


class Polynomial(Schedule):
    """a(t) = 1 - t^power."""

    name: Literal["polynomial"] = "polynomial"
    power: float = Field(default=2.0, gt=0, le=16)

    def mask_rate(self, t: Tensor) -> Tensor:
        return t**self.power

    def raw_weight(self, t: Tensor) -> Tensor:
        return self.power / t

    def time_at(self, mask_rate: Tensor) -> Tensor:
        return mask_rate ** (1.0 / self.power)


class LinearSigma(Schedule):
    """a(t) = exp(-sigma_max t): the total noise sigma grows linearly."""

    name: Literal["linear-sigma"] = "linear-sigma"
    sigma_max: float = Field(default=10.0, gt=0, le=80)

    def mask_rate(self, t: Tensor) -> Tensor:
        return (torch.expm1(-self.sigma_max * t) / math.expm1(-self.sigma_max)).clamp_max(1.0)

    def raw_weight(self, t: Tensor) -> Tensor:
        return self.sigma_max / torch.expm1(self.sigma_max * t)

    def time_at(self, mask_rate: Tensor) -> Tensor:
        return _sigma_at(mask_rate, self.sigma_max) / self.sigma_max


class Geometric(Schedule):
    """a(t) = exp(-sigma(t)) with sigma(t) = sigma_min^(1-t) sigma_max^t."""

    name: Literal["geometric"] = "geometric"
    sigma_min: float = Field(default=1e-3, gt=0)
    sigma_max: float = Field(default=20.0, gt=0, le=80)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.sigma_min >= self.sigma_max:
            raise ValueError("sigma_min must be below sigma_max")
        return self

    @property
    def _log_ratio(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def _growth(self, t: Tensor) -> Tensor:
        """sigma(t) - sigma(0)."""
        return self.sigma_min * torch.expm1(self._log_ratio * t)

    def mask_rate(self, t: Tensor) -> Tensor:
        total = -math.expm1(self.sigma_min - self.sigma_max)  # 1 - a(1)/a(0)
        return (-torch.expm1(-self._growth(t)) / total).clamp_max(1.0)

    def raw_weight(self, t: Tensor) -> Tensor:
        growth = self._growth(t)
        return self._log_ratio * (growth + self.sigma_min) / torch.expm1(growth)

    def time_at(self, mask_rate: Tensor) -> Tensor:
        growth = _sigma_at(mask_rate, self.sigma_max - self.sigma_min)
        return (torch.log1p(growth / self.sigma_min) / self._log_ratio).clamp_max(1.0)


def _sigma_at(mask_rate: Tensor, total: float) -> Tensor:
    """sigma(t) - sigma(0) = -log(1 - v (1 - e^-total)) at a mask rate v, accurate at both ends."""
    late = -torch.log((1.0 - mask_rate) + mask_rate * math.exp(-total))
    return torch.where(mask_rate < 0.5, -torch.log1p(mask_rate * math.expm1(-total)), late).clamp_max(total)


KNOTS = 64
MIN_KNOT_GAP = 1 / 1024
"""The smallest time between two knots for which `time_at` is accurate in float32."""
MIN_LEARNED_SHARE = 1 / 512
"""The smallest share of time that `with_density` gives to an interval, which bounds the weights."""
KNOT_GRID = 1 << 20
"""Learned knots are multiples of 1/KNOT_GRID: the same numbers in float32 and float64."""


class Learned(Schedule):
    """64 knots that training moves to where the variance of the loss is.

    Time is the distribution function of the mask rate u = 1 - alpha: drawing t uniformly and u = F^-1(t) is importance
    sampling with the density p = F', and the weight w = 1/(p u) corrects for it. So p changes the variance of the bound
    and not its value. The variance is least for p(u) proportional to sqrt(E[(loss/u)^2 | u]), which grows like u^-1/2
    near 0; a density that is bounded there has infinite variance. The knots are therefore evenly spaced in v = sqrt(u),
    in which the best density is finite and smooth, and v is linear in t between knots.

    The k-th knot is the time at which the mask rate is (k/64)^2. Without knots alpha is 1 - t^2, the start of training.
    Every `every` steps after `warmup`, training sets the knots from a histogram that decays by `decay`; with
    `every=None` they stay fixed.
    """

    name: Literal["learned"] = "learned"
    knots: tuple[float, ...] | None = None
    every: int | None = Field(default=50, ge=1)
    warmup: int = Field(default=100, ge=0)
    decay: float = Field(default=0.9, ge=0, lt=1)

    @field_validator("knots")
    @classmethod
    def _check_knots(cls, knots: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if knots is not None:
            if len(knots) != KNOTS or knots[-1] != 1.0:
                raise ValueError(f"knots must be {KNOTS} times that end at 1")
            if not all(after - before >= MIN_KNOT_GAP for before, after in pairwise((0.0, *knots))):
                raise ValueError(f"knots must increase from 0 by at least 1/{round(1 / MIN_KNOT_GAP)} each")
        return knots

    @property
    def times(self) -> tuple[float, ...]:
        """The times of all 64 knots."""
        return self.knots or tuple((k + 1) / KNOTS for k in range(KNOTS))

    def breakpoints(self) -> tuple[float, ...]:
        return self.times[:-1]

    def with_density(self, density: Sequence[float]) -> Learned:
        """The same schedule with knots for an unnormalised density over the 64 intervals of v."""
        total = sum(density)
        shares = [max(one / total, MIN_LEARNED_SHARE) for one in density]
        total = sum(shares)
        times = tuple(round(KNOT_GRID * part / total) / KNOT_GRID for part in accumulate(shares))
        return self.model_copy(update={"knots": (*times[:-1], 1.0)})

    def mask_rate(self, t: Tensor) -> Tensor:
        return (self._locate(t)[0] / KNOTS).square()

    def raw_weight(self, t: Tensor) -> Tensor:
        v, share = self._locate(t)
        return 2.0 / (share * v)

    def time_at(self, mask_rate: Tensor) -> Tensor:
        start, end = _intervals(self.times, mask_rate.dtype, mask_rate.device)
        v = KNOTS * mask_rate.sqrt()
        k = v.long().clamp_max(KNOTS - 1)
        return torch.lerp(start[k], end[k], v - k)

    def _locate(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """64 v at the times t, and the share of time of the interval that each t is in."""
        start, end = _intervals(self.times, t.dtype, t.device)
        k = torch.bucketize(t.detach().contiguous(), end, right=True).clamp_max(KNOTS - 1)
        share = end[k] - start[k]
        return k + (t - start[k]) / share, share


@lru_cache(maxsize=16)
def _intervals(times: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """[64], [64] start and end of the intervals between knots; cached, since copying them to a GPU synchronises."""
    start, end = (torch.tensor(knots, dtype=dtype, device=device) for knots in ((0.0, *times[:-1]), times))
    return start, end


def draw_times(seed: Integer, step: Integer, index: Tensor, batch_size: int, independent: bool = False) -> Tensor:
    """[B] times of the samples `index` (positions in the global batch of `batch_size`) at a training step.

    They depend only on the seed, the step and the index, not on how the global batch is split into micro-batches. With
    `independent` they are i.i.d. instead of evenly spaced.
    """
    if independent:
        return uniform(seed, Purpose.TIME, step, index)
    offset = uniform(seed, Purpose.TIME, step=step, device=index.device)
    return low_discrepancy(offset, van_der_corput(batch_size, index.device)[index], batch_size)


def low_discrepancy(offset: Tensor, stratum: Tensor, size: int) -> Tensor:
    """t = (offset + stratum / size) mod 1 in float32: each t is uniform, and all `size` of them are evenly spaced."""
    return torch.remainder(offset + stratum.to(torch.float32) / size, 1.0)


def van_der_corput(size: int, device: torch.device | str | None = None) -> Tensor:
    """[size] the strata 0 .. size-1 in van der Corput order: the rank of each index by its reversed bits.

    Every aligned run of a power-of-two length hits each coarse stratum equally often.
    """
    index = torch.arange(size, device=device)
    reversed_bits = torch.zeros_like(index)
    for bit in range(max(1, (size - 1).bit_length())):
        reversed_bits = (reversed_bits << 1) | ((index >> bit) & 1)
    return reversed_bits.argsort().argsort()
