"""The analytic sampler of SEDD (tau-leaping): a score says itself how likely a position is to be written.

From t to s a masked token becomes y with the chance (e^d - 1) s_y, d = sigma_t - sigma_s, and else stays masked. With
log s = f + log(alpha_t / (1 - alpha_t)) - log(V - 1) it is the process's chance (alpha_s - alpha_t) / (1 - alpha_t)
times the mass S = sum_y e^f_y / (V - 1) of the score, and then a token of x_theta = softmax(f). With a mass of 1 it is
ancestral sampling. A free score may ask for more than 1, which is 1; the last step leaves no mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.process import MAX_STEPS, reveal_probability
from unmask.random import Purpose
from unmask.registry import field
from unmask.samplers.base import Canvas, JointTokenSampler, Positions, Sampler, State
from unmask.samplers.position_scores import look_at_time, lots, of_each, start, write_chosen
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import LogLinear


@dataclass(frozen=True)
class AnalyticPlan:
    """Of each call [T] in float64: alpha before it, and the chance `reveal` that a score of mass 1 is written."""

    alpha: Tensor
    reveal: Tensor


class AnalyticSampler(Sampler):
    """T calls, for networks that were trained to give scores (the objective `sedd`): each position is written with the
    chance that the mass of its score says."""

    name: Literal["analytic"] = "analytic"
    needs_scores: ClassVar[bool] = True
    steps: int = Field(default=128, ge=1, le=MAX_STEPS)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]

    def begin(self, canvas: Canvas) -> State:
        rate = self.schedule.mask_rate(torch.arange(self.steps, -1, -1, dtype=torch.float64) / self.steps)
        plan = AnalyticPlan(1.0 - rate[:-1], reveal_probability(rate[1:], rate[:-1]))
        return start(canvas, self.steps, plan)

    def select(self, state: State, rows: Tensor) -> State:
        return state.select(rows, state.canvas, state.plan)

    def step(self, denoiser: Any, state: State, rule: TokenSampler | JointTokenSampler) -> State:
        plan: AnalyticPlan = state.plan
        seen = look_at_time(denoiser, state, plan.alpha)
        if state.call + 1 == self.steps:
            return write_chosen(denoiser, state, seen, state.masked, rule)
        mass = of_each(state, seen, denoiser.config.vocab_size, partial(_log_mass, denoiser)).exp()
        chosen = state.masked & (lots(state, Purpose.REVEAL) < mass * plan.reveal[state.call].item())
        return write_chosen(denoiser, state, seen, chosen, rule)


def _log_mass(denoiser: Any, rows_ND: Tensor, at: Positions) -> Tensor:
    """[N] log S of the scores that hidden rows give."""
    return denoiser.head(rows_ND).float().logsumexp(-1) - math.log(denoiser.config.vocab_size - 1)
