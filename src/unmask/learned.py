"""The learned schedule: 64 knots that training moves to where the variance of the loss is.

Time is the distribution function of the mask rate u = 1 - alpha: t uniform and u = F^-1(t) is importance sampling with
the density p = F', and the weight w = 1/(p u) makes up for it, so p moves the variance of the bound and not its value.
It is least for p(u) in proportion to sqrt(E[(loss/u)^2 | u]). Near 0, where a loss is that of one token if any, this
grows like u^-1/2, and with a density that is bounded there the variance is infinite. So the knots are evenly spaced in
v = sqrt(u), in which the best density is finite and smooth, and v is linear in t between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from unmask.schedules import Schedule

KNOTS = 64
LEAST_SHARE = 1 / 1024
"""The least time between two knots: what float32 needs to find its way back."""
LEARNT_LEAST_SHARE = 1 / 512
GRID = 1 << 20
"""Learnt knots are multiples of 1/GRID, the same numbers in float32 and float64."""


class Learned(Schedule):
    """The mask rate is (k/64)^2 at the k-th knot, a time; its square root is linear in between. Knots rise to 1.

    Without knots it is 1 - t^2, where learning begins. Every `every` steps after `warmup` training sets the knots anew
    from a histogram of which it keeps the share `decay`; with `every=None` they stay as they are.
    """

    name: Literal["learned"] = "learned"
    knots: tuple[float, ...] | None = None
    every: int | None = Field(default=50, ge=1)
    warmup: int = Field(default=100, ge=0)
    decay: float = Field(default=0.9, ge=0, lt=1)

    @field_validator("knots")
    @classmethod
    def _rising(cls, knots: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if knots is not None:
            if len(knots) != KNOTS or knots[-1] != 1.0:
                raise ValueError(f"knots are {KNOTS} times, the last of which is 1")
            if not all(after - before >= LEAST_SHARE for before, after in pairwise((0.0, *knots))):
                raise ValueError(f"knots rise from 0, each by at least 1/{round(1 / LEAST_SHARE)}")
        return knots

    @property
    def times(self) -> tuple[float, ...]:
        """The times of all 64 knots."""
        return self.knots or tuple((k + 1) / KNOTS for k in range(KNOTS))

    def bends(self) -> tuple[float, ...]:
        return self.times[:-1]

    def shaped(self, density: Sequence[float]) -> Learned:
        """The same with knots for a density over the 64 stretches of v, in any unit; none is left all but empty."""
        shares = _raised(density)
        total = sum(shares)
        times = tuple(round(GRID * part / total) / GRID for part in accumulate(shares))
        return self.model_copy(update={"knots": (*times[:-1], 1.0)})

    def mask_rate(self, t: Tensor) -> Tensor:
        return (self._place(t)[0] / KNOTS).square()

    def rate_of_weight(self, t: Tensor) -> Tensor:
        place, share = self._place(t)
        return 2.0 / (share * place)

    def time_at(self, mask_rate: Tensor) -> Tensor:
        start, end = _stretches(self.times, mask_rate.dtype, mask_rate.device)
        place = KNOTS * mask_rate.sqrt()
        k = place.long().clamp_max(KNOTS - 1)
        return torch.lerp(start[k], end[k], place - k)

    def _place(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """64 v at the times t, and the share of time that its stretch between two knots takes."""
        start, end = _stretches(self.times, t.dtype, t.device)
        k = torch.bucketize(t.detach().contiguous(), end, right=True).clamp_max(KNOTS - 1)
        share = end[k] - start[k]
        return k + (t - start[k]) / share, share


def _raised(density: Sequence[float]) -> list[float]:
    """Shares of the whole, none much below `LEARNT_LEAST_SHARE`, which bounds the weights."""
    total = sum(density)
    return [max(one / total, LEARNT_LEAST_SHARE) for one in density]


@lru_cache(maxsize=16)
def _stretches(times: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """[64], [64] when the stretches between knots begin and end; kept, since a GPU would wait for them each time."""
    start, end = (torch.tensor(knots, dtype=dtype, device=device) for knots in ((0.0, *times[:-1]), times))
    return start, end
