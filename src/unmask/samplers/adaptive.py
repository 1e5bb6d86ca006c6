"""Unmasking as many positions a call as the network is sure of: above a threshold, or within a bound of entropy.

How many calls a walk takes is known at its end. Until then a state says how many it may take at most: those that are
made, and one for every mask that is left.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.samplers.base import Canvas, JointRule, Sampler, State
from unmask.samplers.draws import TokenRule
from unmask.samplers.looking import Score, look, part_written, ranks, score, write_chosen


class Adaptive(Sampler):
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

    def take(self, state: State, rows: Tensor) -> State:
        return state.take(rows, state.canvas, None)

    def step(self, denoiser: Any, state: State, rule: TokenRule | JointRule) -> State:
        seen = look(denoiser, state, part_written(state))
        sure = score(denoiser, state, seen, self.score, rule)
        chosen = (self.chosen(sure) | (ranks(sure) == 0)) & state.masked
        return _at_most(write_chosen(denoiser, state, seen, chosen, rule))


class Threshold(Adaptive):
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


class EntropyBounded(Adaptive):
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
