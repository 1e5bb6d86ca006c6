"""The uniform-order sampler: ancestral sampling, its cached form and first-hitting sampling are this one walk.

Under SUBS the time at which a position is revealed does not depend on the network: it is drawn first. The positions
whose times fall into one of T steps are revealed together, from the canvas before that step; a step in which nothing is
revealed leaves the canvas as it is, so its network call is never made. With `steps=None` positions are revealed one at
a time in decreasing order of their times, which is exactly the law of T -> infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.random import Purpose, uniform
from unmask.registry import field
from unmask.samplers.base import Canvas, Sampler, State
from unmask.samplers.draws import TokenRule
from unmask.schedules import LogLinear, Schedule


@dataclass(frozen=True)
class Plan:
    """`group` [B, L]: the call that reveals each position, -1 for given ones. `time` [B, C]: the time of each call."""

    group: Tensor
    time: Tensor


class Reveal(Sampler):
    """Uniform order in T steps of the schedule's time (`steps=None`: one position at a time)."""

    name: Literal["reveal"] = "reveal"
    steps: int | None = Field(default=None, ge=1)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]

    def begin(self, canvas: Canvas) -> State:
        plan = self.plan(canvas)
        calls = plan.group.max(dim=1).values + 1
        return State.start(canvas, calls, int(calls.max()), plan)

    def plan(self, canvas: Canvas) -> Plan:
        """Draw tau = alpha^{-1}(1 - v) for every masked position and group the positions by step, latest first."""
        schedule: Schedule = self.schedule
        masked = canvas.masked
        position = torch.arange(masked.shape[1], device=masked.device)
        tau = schedule.time_at(uniform(canvas.seeds[:, None], Purpose.REVEAL, position=position[None]))
        tau, order = tau.masked_fill(~masked, -1.0).sort(dim=1, descending=True, stable=True)
        time = tau if self.steps is None else torch.ceil(tau * self.steps).clamp_min(1.0) / self.steps
        first = torch.ones_like(masked)
        if self.steps is not None:
            first[:, 1:] = time[:, 1:] != time[:, :-1]
        group = first.cumsum(dim=1) - 1
        at_call = torch.zeros_like(time).scatter(1, group, time)
        group = group.masked_fill(tau < 0, -1)
        return Plan(torch.empty_like(group).scatter(1, order, group), at_call)

    def step(self, denoiser: Any, state: State, rule: TokenRule) -> State:
        plan: Plan = state.plan
        active = (state.calls > state.call).nonzero()[:, 0]
        alpha = self.schedule.alpha(plan.time[active, state.call])
        attention = state.canvas.attention_mask[active] if state.canvas.has_pads else None
        hidden = denoiser.hidden(state.ids[active], alpha=alpha, attention_mask=attention)
        row, position = (plan.group[active] == state.call).nonzero(as_tuple=True)
        seeds = state.canvas.seeds[active][row]
        tokens, confidence = rule.choose(denoiser.head(hidden[row, position]), seeds, state.call, position)
        return state.write(active[row], position, tokens, confidence)
