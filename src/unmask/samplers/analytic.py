"""The analytic sampler of SEDD (tau-leaping), for networks that output scores.

From t to s a masked token becomes y with probability (e^d - 1) s_y, d = sigma_t - sigma_s, and otherwise stays masked.
With log s = f + log(alpha_t / (1 - alpha_t)) - log(V - 1) this is the probability (alpha_s - alpha_t) / (1 - alpha_t)
of the process, times the mass S = sum_y e^f_y / (V - 1) of the score, and then a token drawn from x_theta = softmax(f).
With S = 1 it is ancestral sampling. Probabilities above 1 count as 1; the last step leaves no mask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.process import MAX_STEPS, reveal_probability
from unmask.random import Purpose
from unmask.registry import field
from unmask.samplers.base import (
    AnyTokenSampler,
    Canvas,
    Positions,
    Sampler,
    State,
    map_positions,
    predict_masked,
    write_selected,
)
from unmask.schedules import LogLinear


class AnalyticSampler(Sampler):
    """T calls; each position is unmasked with a probability proportional to the mass of its score."""

    name: Literal["analytic"] = "analytic"
    needs_scores: ClassVar[bool] = True
    steps: int = Field(default=128, ge=1, le=MAX_STEPS)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]

    def begin(self, canvas: Canvas) -> State:
        rate = self.schedule.mask_rate(torch.arange(self.steps, -1, -1, dtype=torch.float64) / self.steps)
        # [T] each: alpha before a call, and the probability of unmasking at mass 1
        alpha, reveal = 1.0 - rate[:-1], reveal_probability(rate[1:], rate[:-1])
        calls = self.steps * canvas.masked.any(dim=1).long()
        return State.start(canvas, calls, int(calls.max()), (alpha, reveal))

    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        alpha, reveal = state.plan
        prediction = predict_masked(denoiser, state, state.at_own_call(alpha))
        vocab_size = denoiser.config.vocab_size

        def log_mass(hidden_ND: Tensor, at: Positions) -> Tensor:
            return denoiser.head(hidden_ND).float().logsumexp(-1) - math.log(vocab_size - 1)

        mass = map_positions(state, prediction, vocab_size, log_mass).exp()
        last = torch.arange(self.steps) == self.steps - 1
        chance = (mass * state.at_own_call(reveal)).maximum(state.at_own_call(last))
        selected = state.masked & (state.uniforms(Purpose.REVEAL) < chance)
        return write_selected(denoiser, state, prediction, selected, token_sampler)

    def select_plan(self, state: State, rows: Tensor) -> Any:
        return state.plan

    def join_plans(self, states: Sequence[State]) -> Any:
        return states[0].plan
