"""A forward-backward corrector: after each step of ancestral sampling some tokens are masked again and predicted anew.

At level s the forward process masks a fraction of what is written, which is going back to the time at which alpha is
that much smaller, and one backward step returns to s. True conditionals keep the law of the level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import Self

from unmask.process import MAX_STEPS, remask_limit, reveal_probability
from unmask.random import Purpose
from unmask.registry import field
from unmask.samplers.base import Canvas, JointTokenSampler, Sampler, State
from unmask.samplers.position_scores import look_at_time, lots, start, write_chosen
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import LogLinear


@dataclass(frozen=True)
class ReMDMPlan:
    """Of each call [T] in float64: alpha before it, the chance `remask` that a token is masked again, its `limit`, and
    the chance `reveal` that a masked one is written."""

    alpha: Tensor
    remask: Tensor
    limit: Tensor
    reveal: Tensor


class ReMDMSampler(Sampler):
    """T calls. `cap`: rho is eta where the limit allows; `rescale`: eta times the limit; `conf`: on average as cap, and
    more for tokens that were unlikely when they were written; `loop`: as cap while alpha is held at `alpha_on` between
    the times `t_on` and `t_off`, 0 before and after."""

    name: Literal["remdm"] = "remdm"
    rewrites: ClassVar[bool] = True
    strategy: Literal["cap", "rescale", "conf", "loop"] = "cap"
    steps: int = Field(default=128, ge=1, le=MAX_STEPS)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]
    eta: float = Field(default=0.02, ge=0, le=1)
    t_on: float = Field(default=0.55, gt=0, le=1)
    t_off: float = Field(default=0.05, gt=0, le=1)
    alpha_on: float = Field(default=0.9, gt=0, lt=1)

    @model_validator(mode="after")
    def _loops_forward(self) -> Self:
        if self.t_off > self.t_on:
            raise ValueError("a loop begins at t_on and ends at a smaller t_off")
        return self

    def begin(self, canvas: Canvas) -> State:
        return start(canvas, self.steps, self.plan())

    def plan(self) -> ReMDMPlan:
        """What does not depend on the canvas, from the first call to the last."""
        time = torch.arange(self.steps, -1, -1, dtype=torch.float64) / self.steps
        t, s = time[:-1], time[1:]
        rate = self.schedule.mask_rate(self._held(time) if self.strategy == "loop" else time)
        limit = remask_limit(rate[1:], rate[:-1])
        remask = RATES[self.strategy](self, limit, t, s)
        return ReMDMPlan(1.0 - rate[:-1], remask, limit, reveal_probability(rate[1:], rate[:-1], remask))

    def _held(self, time: Tensor) -> Tensor:
        """The schedule's times [T + 1] of a walk that stands still from `t_on` to `t_off`."""
        hold = self.schedule.inverse(torch.tensor(self.alpha_on, dtype=torch.float64))
        before = hold + (1.0 - hold) * (time - self.t_on) / max(1.0 - self.t_on, torch.finfo(time.dtype).tiny)
        return torch.where(time > self.t_on, before, hold * (time / self.t_off).clamp_max(1.0))

    def step(self, denoiser: Any, state: State, rule: TokenSampler | JointTokenSampler) -> State:
        plan: ReMDMPlan = state.plan
        seen = look_at_time(denoiser, state, plan.alpha)
        chance = lots(state, Purpose.REVEAL)
        forgotten = state.written & (chance < self._remask(state))
        chosen = state.masked & (chance < float(plan.reveal[state.call]))
        return write_chosen(denoiser, state, seen, chosen, rule).remask(forgotten)

    def _remask(self, state: State) -> Tensor | float:
        """The chance that a token is masked again, one for all or [B, L]."""
        rho, limit = float(state.plan.remask[state.call]), float(state.plan.limit[state.call])
        if self.strategy != "conf":
            return rho
        doubt = (-state.confidence).masked_fill(~state.written, -torch.inf).softmax(dim=1).nan_to_num()
        return (rho * state.written.sum(dim=1, keepdim=True) * doubt).clamp_max(limit)


def _cap(sampler: ReMDMSampler, limit: Tensor, t: Tensor, s: Tensor) -> Tensor:
    return limit.clamp_max(sampler.eta)


def _rescale(sampler: ReMDMSampler, limit: Tensor, t: Tensor, s: Tensor) -> Tensor:
    return sampler.eta * limit


def _loop(sampler: ReMDMSampler, limit: Tensor, t: Tensor, s: Tensor) -> Tensor:
    return _cap(sampler, limit, t, s).where((t <= sampler.t_on) & (s >= sampler.t_off), 0.0)


RATES: dict[str, Callable[[ReMDMSampler, Tensor, Tensor, Tensor], Tensor]] = {
    "cap": _cap,
    "rescale": _rescale,
    "conf": _cap,
    "loop": _loop,
}
"""[T] rho from its limits [T] and the times [T] before and after each call."""


@dataclass(frozen=True)
class CorrectorPlan:
    """Of each call [T] in float64: the chance `forget` with which it masks what is written, alpha after that, and the
    chance `reveal` with which it then writes what is masked."""

    forget: Tensor
    alpha: Tensor
    reveal: Tensor


class CorrectorSampler(Sampler):
    """T calls, by turns a step of the schedule's and a correction of it by `fraction` of the tokens."""

    name: Literal["corrector"] = "corrector"
    rewrites: ClassVar[bool] = True
    steps: int = Field(default=128, ge=1, le=MAX_STEPS)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]
    fraction: float = Field(default=0.1, gt=0, le=1)

    def begin(self, canvas: Canvas) -> State:
        return start(canvas, self.steps, self.plan())

    def plan(self) -> CorrectorPlan:
        """What does not depend on the canvas, from the first call to the last."""
        predictions = (self.steps + 1) // 2
        time = torch.arange(predictions, -1, -1, dtype=torch.float64) / predictions
        call = torch.arange(self.steps)
        corrects = call % 2 == 1
        rate = self.schedule.mask_rate(time)
        rate_s = rate[call // 2 + 1]
        rate_t = torch.where(corrects, 1.0 - (1.0 - self.fraction) * (1.0 - rate_s), rate[call // 2])
        return CorrectorPlan(self.fraction * corrects.double(), 1.0 - rate_t, reveal_probability(rate_s, rate_t))

    def step(self, denoiser: Any, state: State, rule: TokenSampler | JointTokenSampler) -> State:
        plan: CorrectorPlan = state.plan
        state = state.remask(state.written & (lots(state, Purpose.MASK) < float(plan.forget[state.call])))
        seen = look_at_time(denoiser, state, plan.alpha)
        chosen = state.masked & (lots(state, Purpose.REVEAL) < float(plan.reveal[state.call]))
        return write_chosen(denoiser, state, seen, chosen, rule)
