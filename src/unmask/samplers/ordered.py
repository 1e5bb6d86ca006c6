"""Unmasking in an order: the surest positions first by a score or a planner, from left to right, or by lot.

Which positions a call writes is decided before their tokens are drawn and by nothing but the canvas, so that with true
conditionals one position at a time gives the law of the data in whichever order. How many each call writes is planned
at the start; T steps are exactly T calls wherever there are T positions to write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.process import MOST_STEPS
from unmask.random import Purpose, uniform
from unmask.registry import field
from unmask.samplers.base import Canvas, JointRule, Sampler, State
from unmask.samplers.draws import TokenRule
from unmask.samplers.looking import look, part_written, ranks, score, write_chosen
from unmask.schedules import LogLinear, Schedule


@dataclass(frozen=True)
class Plan:
    """How many positions each call writes in each sequence, `portions` [B, C]; `score` [B, L] says which, if it is not
    the network that is asked."""

    portions: Tensor
    score: Tensor | None


class Ordered(Sampler):
    """An order in T calls, which write as many positions each as the schedule `pace` would on average; by default all
    calls write equally many."""

    name: Literal["ordered"] = "ordered"
    order: Literal["confidence", "margin", "entropy", "planner", "left_to_right", "uniform"] = "confidence"
    steps: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    pace: field("schedule") = LogLinear()  # type: ignore[valid-type]

    @property
    def needs_planner(self) -> bool:
        return self.order == "planner"

    def begin(self, canvas: Canvas) -> State:
        masks = canvas.masked.sum(dim=1).tolist()
        of = {n: portions(n, self.steps, self.pace) for n in set(masks)}
        total = max(len(of[n]) for n in masks)
        planned = torch.tensor([of[n] + [0] * (total - len(of[n])) for n in masks], device=canvas.ids.device)
        calls = torch.tensor([len(of[n]) for n in masks], device=canvas.ids.device)
        fixed = FIXED.get(self.order)
        return State.start(canvas, calls, total, Plan(planned, None if fixed is None else fixed(canvas)))

    def take(self, state: State, rows: Tensor) -> State:
        plan: Plan = state.plan
        taken = Plan(plan.portions[rows], None if plan.score is None else plan.score[rows])
        return state.take(rows, state.canvas, taken)

    def step(self, denoiser: Any, state: State, rule: TokenRule | JointRule) -> State:
        plan: Plan = state.plan
        seen = look(denoiser, state, part_written(state))
        if plan.score is None:
            sure = score(denoiser, state, seen, self.order, rule)  # type: ignore[arg-type]
        else:
            sure = plan.score.masked_fill(~state.masked, -torch.inf)
        return write_chosen(denoiser, state, seen, ranks(sure) < plan.portions[:, state.call, None], rule)


def portions(masks: int, steps: int | None, pace: Schedule) -> list[int]:
    """How many of the masked positions each call writes: at least one, and as near to the schedule as that allows.

    Of n masks the schedule leaves n (1 - alpha) on average. With `left` rounded, left + call must fall or stay from
    each call to the next, and never be below the number of calls.
    """
    calls = min(steps or masks, masks)
    call = torch.arange(calls + 1, dtype=torch.float64)
    left = (masks * pace.mask_rate(1.0 - call / max(calls, 1)) + 0.5).floor()
    left = (left + call).clamp_min(calls).cummin(dim=0).values - call
    return (-left.diff()).long().tolist()


def _left_to_right(canvas: Canvas) -> Tensor:
    return -torch.arange(canvas.ids.shape[1], device=canvas.ids.device).float().expand(canvas.ids.shape)


def _by_lot(canvas: Canvas) -> Tensor:
    position = torch.arange(canvas.ids.shape[1], device=canvas.ids.device)
    return uniform(canvas.seeds[:, None], Purpose.REVEAL, position=position[None])


FIXED: dict[str, Callable[[Canvas], Tensor]] = {"left_to_right": _left_to_right, "uniform": _by_lot}
"""[B, L] scores of orders that do not look at the network."""
