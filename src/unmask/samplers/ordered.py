"""Unmasking as many positions a call as the network is sure of: above a threshold, or within a bound of entropy.

How many calls a walk takes is known at its end. Until then a state says how many it may take at most: those that are
made, and one for every mask that is left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.process import MAX_STEPS
from unmask.random import Purpose, uniform
from unmask.registry import field
from unmask.samplers.base import Canvas, JointTokenSampler, Sampler, State
from unmask.samplers.position_scores import Score, look, part_written, ranks, score, write_chosen
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import LogLinear, Schedule


@dataclass(frozen=True)
class OrderedPlan:
    """How many positions each call writes in each sequence, `portions` [B, C]; `score` [B, L] says which, if it is not
    the network that is asked."""

    portions: Tensor
    score: Tensor | None


class OrderedSampler(Sampler):
    """An order in T calls, which write as many positions each as the schedule `pace` would on average; by default all
    calls write equally many."""

    name: Literal["ordered"] = "ordered"
    order: Literal["confidence", "margin", "entropy", "planner", "left_to_right", "uniform"] = "confidence"
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    pace: field("schedule") = LogLinear()  # type: ignore[valid-type]

    @property
    def needs_planner(self) -> bool:
        return self.order == "planner"

    def begin(self, canvas: Canvas) -> State:
        masks = canvas.masked.sum(dim=1).tolist()
        of = {n: tokens_per_call(n, self.steps, self.pace) for n in set(masks)}
        total = max(len(of[n]) for n in masks)
        planned = torch.tensor([of[n] + [0] * (total - len(of[n])) for n in masks], device=canvas.ids.device)
        calls = torch.tensor([len(of[n]) for n in masks], device=canvas.ids.device)
        fixed = FIXED.get(self.order)
        return State.start(canvas, calls, total, OrderedPlan(planned, None if fixed is None else fixed(canvas)))

    def select(self, state: State, rows: Tensor) -> State:
        plan: OrderedPlan = state.plan
        taken = OrderedPlan(plan.portions[rows], None if plan.score is None else plan.score[rows])
        return state.select(rows, state.canvas, taken)

    def step(self, denoiser: Any, state: State, rule: TokenSampler | JointTokenSampler) -> State:
        plan: OrderedPlan = state.plan
        seen = look(denoiser, state, part_written(state))
        if plan.score is None:
            sure = score(denoiser, state, seen, self.order, rule)  # type: ignore[arg-type]
        else:
            sure = plan.score.masked_fill(~state.masked, -torch.inf)
        return write_chosen(denoiser, state, seen, ranks(sure) < plan.portions[:, state.call, None], rule)


def tokens_per_call(masks: int, steps: int | None, pace: Schedule) -> list[int]:
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


class AdaptiveSampler(Sampler):
    """Writes in each call what `chosen` says of the scores of all masked positions, at least the surest of them."""

    adaptive: ClassVar[bool] = True

    @property
    @abstractmethod
    def score(self) -> Score:
        """What makes a position sure."""

    @abstractmethod
    def chosen(self, score_BL: Tensor) -> Tensor:
        """[B, L] the positions to be written, from scores that are minus infinity where nothing is masked."""

    def begin(self, canvas: Canvas) -> State:
        calls = canvas.masked.sum(dim=1)
        return State.start(canvas, calls, int(calls.max()), plan=None)

    def select(self, state: State, rows: Tensor) -> State:
        return state.select(rows, state.canvas, None)

    def step(self, denoiser: Any, state: State, rule: TokenSampler | JointTokenSampler) -> State:
        seen = look(denoiser, state, part_written(state))
        sure = score(denoiser, state, seen, self.score, rule)
        chosen = (self.chosen(sure) | (ranks(sure) == 0)) & state.masked
        return _at_most(write_chosen(denoiser, state, seen, chosen, rule))


class ThresholdSampler(AdaptiveSampler):
    """All positions whose most likely token has a probability above a threshold: `by` the network's own `confidence`,
    or by what its `planner` makes of that."""

    name: Literal["threshold"] = "threshold"
    by: Literal["confidence", "planner"] = "confidence"
    above: float = Field(default=0.9, ge=0, le=1)

    @property
    def score(self) -> Score:
        return self.by

    @property
    def needs_planner(self) -> bool:
        return self.by == "planner"

    def chosen(self, score_BL: Tensor) -> Tensor:
        return score_BL > self.above


class EntropyBoundedSampler(AdaptiveSampler):
    """The largest set, in order of entropy, of which (sum of entropies - largest) <= gamma, in nats.

    That difference bounds what drawing the set's tokens independently of one another can cost.
    """

    name: Literal["entropy_bounded"] = "entropy_bounded"
    gamma: float = Field(default=0.1, ge=0, allow_inf_nan=False)

    @property
    def score(self) -> Score:
        return "entropy"

    def chosen(self, score_BL: Tensor) -> Tensor:
        entropy, order = (-score_BL).sort(dim=1, stable=True)
        before = torch.nn.functional.pad(entropy.cumsum(dim=1)[:, :-1], (1, 0))
        return torch.empty_like(before, dtype=torch.bool).scatter(1, order, before <= self.gamma)


def _at_most(state: State) -> State:
    """The same state, with what is now known of the number of calls."""
    left = state.masked.sum(dim=1)
    calls = torch.where(left > 0, state.call + left, state.calls.clamp_max(state.call))
    return replace(state, calls=calls, total=int(calls.max()))
