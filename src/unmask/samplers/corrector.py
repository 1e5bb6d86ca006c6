"""A forward-backward corrector: after each step of ancestral sampling some tokens are masked again and predicted anew.

At level s the forward process masks a fraction of what is written, which is going back to the time at which alpha is
that much smaller, and one backward step returns to s. True conditionals keep the law of the level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.process import MOST_STEPS, reveal_probability
from unmask.random import Purpose
from unmask.registry import field
from unmask.samplers import turns
from unmask.samplers.base import Canvas, JointRule, Sampler, State
from unmask.samplers.draws import TokenRule
from unmask.samplers.looking import write_chosen
from unmask.schedules import LogLinear


@dataclass(frozen=True)
class Plan:
    """Of each call [T] in float64: the chance `forget` with which it masks what is written, alpha after that, and the
    chance `reveal` with which it then writes what is masked."""

    forget: Tensor
    alpha: Tensor
    reveal: Tensor


class Corrector(Sampler):
    """T calls, by turns a step of the schedule's and a correction of it by `fraction` of the tokens."""

    name: Literal["corrector"] = "corrector"
    rewrites: ClassVar[bool] = True
    steps: int = Field(default=128, ge=1, le=MOST_STEPS)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]
    fraction: float = Field(default=0.1, gt=0, le=1)

    def begin(self, canvas: Canvas) -> State:
        return turns.start(canvas, self.steps, self.plan())

    def plan(self) -> Plan:
        """What does not depend on the canvas, from the first call to the last."""
        predictions = (self.steps + 1) // 2
        time = torch.arange(predictions, -1, -1, dtype=torch.float64) / predictions
        call = torch.arange(self.steps)
        corrects = call % 2 == 1
        rate = self.schedule.mask_rate(time)
        rate_s = rate[call // 2 + 1]
        rate_t = torch.where(corrects, 1.0 - (1.0 - self.fraction) * (1.0 - rate_s), rate[call // 2])
        return Plan(self.fraction * corrects.double(), 1.0 - rate_t, reveal_probability(rate_s, rate_t))

    def step(self, denoiser: Any, state: State, rule: TokenRule | JointRule) -> State:
        plan: Plan = state.plan
        state = state.forget(state.written & (turns.lots(state, Purpose.MASK) < float(plan.forget[state.call])))
        seen = turns.look_at_time(denoiser, state, plan.alpha)
        chosen = state.masked & (turns.lots(state, Purpose.REVEAL) < float(plan.reveal[state.call]))
        return write_chosen(denoiser, state, seen, chosen, rule)
