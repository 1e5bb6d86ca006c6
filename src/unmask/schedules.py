"""Noise schedules: alpha(t), the chance that a token is still visible at time t. They know no tokens and no models.

Every schedule is a raw shape a(t) rescaled to the ends, alpha(t) = (a(t) - a(1)) / (a(0) - a(1)), so alpha(0) = 1 and
alpha(1) = 0 exactly and the prior term of the bound is zero. Each member writes two things without cancellation near
t = 0: the mask rate 1 - alpha and the weight w(t) = -alpha'(t) / (1 - alpha(t)) of eq. 10; everything else follows.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import Self

from unmask.registry import Component

SMALLEST_TIME = 2.0**-33


class Schedule(Component):
    """alpha(t), its derivative, the weight of the bound, and the inverse. Times and results are float tensors."""

    @abstractmethod
    def mask_rate(self, t: Tensor) -> Tensor:
        """1 - alpha(t): the chance that a token is masked at time t, accurate also where it is tiny."""

    @abstractmethod
    def rate_of_weight(self, t: Tensor) -> Tensor:
        """w(t) for t > 0; `weight` guards the pole at 0."""

    @abstractmethod
    def time_at(self, mask_rate: Tensor) -> Tensor:
        """The inverse of `mask_rate`."""

    def alpha(self, t: Tensor) -> Tensor:
        """The chance that a token is visible at time t."""
        return 1.0 - self.mask_rate(t)

    def dalpha(self, t: Tensor) -> Tensor:
        """alpha'(t), never positive."""
        t = t.clamp_min(SMALLEST_TIME)
        return -self.weight(t) * self.mask_rate(t)

    def weight(self, t: Tensor) -> Tensor:
        """w(t) = -alpha'(t) / (1 - alpha(t)), eq. 10. Its pole is at 0, where no token is masked: t is kept off it."""
        return self.rate_of_weight(t.clamp_min(SMALLEST_TIME))

    def inverse(self, alpha: Tensor) -> Tensor:
        """The time at which alpha(t) has this value."""
        return self.time_at(1.0 - alpha)

    def bends(self) -> tuple[float, ...]:
        """The times inside (0, 1) at which alpha' jumps, in order; whoever integrates goes from one to the next."""
        return ()


class LogLinear(Schedule):
    """a(t) = 1 - t, the paper's choice: -log alpha is log-linear and w(t) = 1/t."""

    name: Literal["loglinear"] = "loglinear"

    def mask_rate(self, t: Tensor) -> Tensor:
        return t

    def rate_of_weight(self, t: Tensor) -> Tensor:
        return 1.0 / t

    def time_at(self, mask_rate: Tensor) -> Tensor:
        return mask_rate


class Cosine(Schedule):
    """a(t) = cos(pi t / 2)."""

    name: Literal["cosine"] = "cosine"

    def mask_rate(self, t: Tensor) -> Tensor:
        # the second form is exactly 1 at t = 1
        return torch.where(t < 0.5, 2.0 * torch.sin(math.pi / 4 * t).square(), 1.0 - torch.sin(math.pi / 2 * (1.0 - t)))

    def rate_of_weight(self, t: Tensor) -> Tensor:
        return math.pi / 2 / torch.tan(math.pi / 4 * t)

    def time_at(self, mask_rate: Tensor) -> Tensor:
        early = torch.asin((mask_rate / 2).sqrt()) * (4 / math.pi)
        return torch.where(mask_rate < 0.5, early, 1.0 - torch.asin(1.0 - mask_rate) * (2 / math.pi))


class CosineSquared(Schedule):
    """a(t) = cos(pi t / 2)^2."""

    name: Literal["cosine-squared"] = "cosine-squared"

    def mask_rate(self, t: Tensor) -> Tensor:
        return torch.sin(math.pi / 2 * t).square()

    def rate_of_weight(self, t: Tensor) -> Tensor:
        # cot(pi t / 2) as a tangent, which is exactly 0 at t = 1 where the cotangent of a rounded pi/2 is not
        return math.pi * torch.tan(math.pi / 2 * (1.0 - t)).where(t > 0.5, 1.0 / torch.tan(math.pi / 2 * t))

    def time_at(self, mask_rate: Tensor) -> Tensor:
        late = 1.0 - torch.asin((1.0 - mask_rate).sqrt()) * (2 / math.pi)
        return torch.where(mask_rate < 0.5, torch.asin(mask_rate.sqrt()) * (2 / math.pi), late)


class LinearSigma(Schedule):
    """a(t) = exp(-sigma_max t): the total noise sigma grows linearly."""

    name: Literal["linear-sigma"] = "linear-sigma"
    sigma_max: float = Field(default=10.0, gt=0, le=80)

    def mask_rate(self, t: Tensor) -> Tensor:
        return (torch.expm1(-self.sigma_max * t) / math.expm1(-self.sigma_max)).clamp_max(1.0)

    def rate_of_weight(self, t: Tensor) -> Tensor:
        return self.sigma_max / torch.expm1(self.sigma_max * t)

    def time_at(self, mask_rate: Tensor) -> Tensor:
        return _noise_at(mask_rate, self.sigma_max) / self.sigma_max


class Geometric(Schedule):
    """a(t) = exp(-sigma(t)) with sigma(t) = sigma_min^(1-t) sigma_max^t."""

    name: Literal["geometric"] = "geometric"
    sigma_min: float = Field(default=1e-3, gt=0)
    sigma_max: float = Field(default=20.0, gt=0, le=80)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.sigma_min >= self.sigma_max:
            raise ValueError("sigma_min must be below sigma_max")
        return self

    @property
    def _log_ratio(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    @property
    def _range(self) -> float:
        """1 - a(1)/a(0)."""
        return -math.expm1(self.sigma_min - self.sigma_max)

    def _growth(self, t: Tensor) -> Tensor:
        """sigma(t) - sigma(0)."""
        return self.sigma_min * torch.expm1(self._log_ratio * t)

    def mask_rate(self, t: Tensor) -> Tensor:
        return (-torch.expm1(-self._growth(t)) / self._range).clamp_max(1.0)

    def rate_of_weight(self, t: Tensor) -> Tensor:
        growth = self._growth(t)
        return self._log_ratio * (growth + self.sigma_min) / torch.expm1(growth)

    def time_at(self, mask_rate: Tensor) -> Tensor:
        growth = _noise_at(mask_rate, self.sigma_max - self.sigma_min)
        return (torch.log1p(growth / self.sigma_min) / self._log_ratio).clamp_max(1.0)


class Polynomial(Schedule):
    """a(t) = 1 - t^power."""

    name: Literal["polynomial"] = "polynomial"
    power: float = Field(default=2.0, gt=0, le=16)

    def mask_rate(self, t: Tensor) -> Tensor:
        return t**self.power

    def rate_of_weight(self, t: Tensor) -> Tensor:
        return self.power / t

    def time_at(self, mask_rate: Tensor) -> Tensor:
        return mask_rate ** (1.0 / self.power)


def _noise_at(mask_rate: Tensor, total: float) -> Tensor:
    """-log(1 - v (1 - e^-total)) for a mask rate v: the noise that has grown since t = 0, accurate at both ends."""
    late = -torch.log((1.0 - mask_rate) + mask_rate * math.exp(-total))
    return torch.where(mask_rate < 0.5, -torch.log1p(mask_rate * math.expm1(-total)), late).clamp_max(total)
