"""Samplers that remask written tokens: ReMDM (arXiv 2503.00307) and a forward-backward corrector."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor
from typing_extensions import Self

from unmask.process import MAX_STEPS, remask_limit, reveal_probability
from unmask.random import Purpose
from unmask.registry import field
from unmask.samplers.base import AnyTokenSampler, Canvas, Sampler, State, predict_masked, write_selected
from unmask.schedules import LogLinear


class RemaskingSampler(Sampler):
    """T calls whose probabilities are planned in advance."""

    rewrites: ClassVar[bool] = True
    steps: int = Field(default=128, ge=1, le=MAX_STEPS)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]

    @abstractmethod
    def plan(self) -> Any:
        """The probabilities of each call, float64 tensors [T]."""

    def begin(self, canvas: Canvas) -> State:
        calls = self.steps * canvas.masked.any(dim=1).long()
        return State.start(canvas, calls, int(calls.max()), self.plan())

    def keep(self, state: State, rows: Tensor) -> State:
        return state.select(rows, state.canvas.select(rows), state.plan)

    def join_plans(self, states: Sequence[State]) -> Any:
        return states[0].plan


@dataclass(frozen=True)
class ReMDMPlan:
    """[T] each: alpha before a call, the remasking probability rho and its limit, the probability of unmasking."""

    alpha: Tensor
    remask: Tensor
    limit: Tensor
    reveal: Tensor


class ReMDMSampler(RemaskingSampler):
    """T calls, each of which unmasks some positions and remasks written tokens with probability rho.

    `cap`: rho = min(eta, limit). `rescale`: rho = eta times the limit. `cap_conf`: as `cap`, but rho is shared out so
    that less confident tokens get more, each at most the limit; the published ReMDM-conf is the sampler `remdm-conf`.
    `loop`: alpha is held at `alpha_on` from time `t_on` to `t_off`; rho is that of `cap` there and 0 elsewhere.
    """

    name: Literal["remdm"] = "remdm"
    strategy: Annotated[
        Literal["cap", "rescale", "cap_conf", "loop"],
        BeforeValidator(lambda name: "cap_conf" if name == "conf" else name),  # its earlier name
    ] = "cap"
    eta: float = Field(default=0.02, ge=0, le=1)
    t_on: float = Field(default=0.55, gt=0, le=1)
    t_off: float = Field(default=0.05, gt=0, le=1)
    alpha_on: float = Field(default=0.9, gt=0, lt=1)

    @model_validator(mode="after")
    def _check_loop(self) -> Self:
        if self.t_off > self.t_on:
            raise ValueError(f"t_off must not be above t_on={self.t_on}, got {self.t_off}.")
        return self

    def plan(self) -> ReMDMPlan:
        time = torch.arange(self.steps, -1, -1, dtype=torch.float64) / self.steps
        t, s = time[:-1], time[1:]
        rate = self.schedule.mask_rate(self._loop_times(time) if self.strategy == "loop" else time)
        rate_t, rate_s = rate[:-1], rate[1:]
        limit = remask_limit(rate_s, rate_t)
        rho = self.eta * limit if self.strategy == "rescale" else limit.clamp_max(self.eta)
        if self.strategy == "loop":
            rho = rho.where((t <= self.t_on) & (s >= self.t_off), 0.0)
        return ReMDMPlan(1.0 - rate_t, rho, limit, reveal_probability(rate_s, rate_t, rho))

    def _loop_times(self, time: Tensor) -> Tensor:
        """[T + 1] the times of the schedule for a run that holds alpha from `t_on` to `t_off`."""
        hold = self.schedule.inverse(torch.tensor(self.alpha_on, dtype=torch.float64))
        before = hold + (1.0 - hold) * (time - self.t_on) / max(1.0 - self.t_on, torch.finfo(time.dtype).tiny)
        return torch.where(time > self.t_on, before, hold * (time / self.t_off).clamp_max(1.0))

    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        rho = state.at_own_call(state.plan.remask)
        if self.strategy == "cap_conf":
            shared = rho * state.written.sum(dim=1, keepdim=True) * remask_shares(state)
            rho = shared.minimum(state.at_own_call(state.plan.limit))
        return remasking_step(denoiser, state, token_sampler, rho)


class ReMDMConfSampler(RemaskingSampler):
    """ReMDM-conf as published: written tokens share the limit of rho by a softmax of minus their confidence.

    The rho of a masked token is 0, so it is unmasked as by ancestral sampling.
    """

    name: Literal["remdm-conf"] = "remdm-conf"

    def plan(self) -> ReMDMPlan:
        # eta = 0: masked tokens are unmasked as by ancestral sampling, and of the plan only the limit remasks
        return ReMDMSampler(steps=self.steps, schedule=self.schedule, eta=0.0).plan()

    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        rho = state.at_own_call(state.plan.limit) * remask_shares(state)
        return remasking_step(denoiser, state, token_sampler, rho)


def remasking_step(denoiser: Any, state: State, token_sampler: AnyTokenSampler, rho: Tensor) -> State:
    """One network call that unmasks positions by the plan and masks written tokens again with probability `rho`."""
    plan: ReMDMPlan = state.plan
    prediction = predict_masked(denoiser, state, state.at_own_call(plan.alpha))
    u = state.uniforms(Purpose.REVEAL)  # one for both: no position is written and masked
    remasked = state.written & (u < rho)
    selected = state.masked & (u < state.at_own_call(plan.reveal))
    return write_selected(denoiser, state, prediction, selected, token_sampler).remask(remasked)


def remask_shares(state: State) -> Tensor:
    """[B, L] the share of rho of each written token, the softmax of minus its confidence; 0 elsewhere."""
    return (-state.confidence).masked_fill(~state.written, -torch.inf).softmax(dim=1).nan_to_num()


@dataclass(frozen=True)
class CorrectorPlan:
    """[T] each: the probability of remasking a written token, alpha after remasking, the probability of unmasking."""

    remask: Tensor
    alpha: Tensor
    reveal: Tensor


class CorrectorSampler(RemaskingSampler):
    """T calls, alternating between an ancestral step and a forward-backward correction of `fraction` of the tokens.

    At time s the forward process masks a fraction of the written tokens, which leads to the time t with
    alpha_t = (1 - fraction) alpha_s, and one reverse step returns to s. With true conditionals the distribution at s
    does not change.
    """

    name: Literal["corrector"] = "corrector"
    fraction: float = Field(default=0.1, gt=0, le=1)

    def plan(self) -> CorrectorPlan:
        ancestral_steps = (self.steps + 1) // 2
        time = torch.arange(ancestral_steps, -1, -1, dtype=torch.float64) / ancestral_steps
        call = torch.arange(self.steps)
        corrects = call % 2 == 1
        rate = self.schedule.mask_rate(time)
        rate_s = rate[call // 2 + 1]
        rate_t = torch.where(corrects, 1.0 - (1.0 - self.fraction) * (1.0 - rate_s), rate[call // 2])
        return CorrectorPlan(self.fraction * corrects.double(), 1.0 - rate_t, reveal_probability(rate_s, rate_t))

    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        plan: CorrectorPlan = state.plan
        remasked = state.uniforms(Purpose.MASK) < state.at_own_call(plan.remask)
        state = state.remask(state.written & remasked)
        prediction = predict_masked(denoiser, state, state.at_own_call(plan.alpha))
        selected = state.masked & (state.uniforms(Purpose.REVEAL) < state.at_own_call(plan.reveal))
        return write_selected(denoiser, state, prediction, selected, token_sampler)
