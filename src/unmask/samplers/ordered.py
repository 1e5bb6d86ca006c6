"""Samplers that choose which positions to unmask: by confidence, margin, entropy or a planner, in a fixed order, or as
many per call as a threshold or an entropy bound allows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unmask.process import MAX_STEPS
from unmask.random import Purpose, uniform
from unmask.registry import field
from unmask.samplers.base import (
    AnyTokenSampler,
    Canvas,
    JointTokenSampler,
    Positions,
    Prediction,
    Sampler,
    State,
    cat_optional,
    map_positions,
    predict_masked,
    write_selected,
)
from unmask.samplers.eos import TextEnds
from unmask.schedules import LogLinear, Schedule

PositionScore = Literal["confidence", "margin", "entropy", "planner"]


@dataclass(frozen=True)
class OrderedPlan:
    counts: Tensor
    """[B, C] the number of positions that each call writes."""
    scores: Tensor | None
    """[B, L] the scores of an order that does not depend on the network."""
    first_call: Tensor | None = None
    """[B, L] the first call that may write each position; None if all calls may."""


class OrderedSampler(Sampler):
    """T calls, each of which writes the positions with the highest scores.

    A call writes as many positions as the schedule `pace` unmasks on average, by default equally many each.
    """

    name: Literal["ordered"] = "ordered"
    order: Literal["confidence", "margin", "entropy", "planner", "left_to_right", "uniform"] = "confidence"
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    pace: field("schedule") = LogLinear()  # type: ignore[valid-type]

    @property
    def needs_planner(self) -> bool:
        return self.order == "planner"

    def begin(self, canvas: Canvas) -> State:
        position, scores = torch.arange(canvas.ids.shape[1], device=canvas.ids.device), None
        if self.order == "left_to_right":
            scores = -position.float().expand(canvas.ids.shape)
        elif self.order == "uniform":
            scores = uniform(canvas.seeds[:, None], Purpose.REVEAL, position=position[None])
        masks = canvas.masked.sum(dim=1).tolist()
        counts = {n: tokens_per_call(n, self.steps, self.pace) for n in set(masks)}
        return start_ordered(canvas, [counts[n] for n in masks], scores)

    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        plan: OrderedPlan = state.plan
        prediction = predict_masked(denoiser, state, fraction_written(state))
        if plan.scores is None:
            scores = position_scores(denoiser, state, prediction, self.order, token_sampler)  # type: ignore[arg-type]
        else:
            scores = plan.scores.masked_fill(~state.masked, -torch.inf)
        if plan.first_call is not None:
            own = state.own_call
            scores = scores.masked_fill(plan.first_call > (own if isinstance(own, int) else own[:, None]), -torch.inf)
        selected = ranks(scores) < state.take_own_call(plan.counts)[:, None]
        return write_selected(denoiser, state, prediction, selected, token_sampler)

    def select_plan(self, state: State, rows: Tensor) -> OrderedPlan:
        plan: OrderedPlan = state.plan
        scores, first_call = (None if part is None else part[rows] for part in (plan.scores, plan.first_call))
        return OrderedPlan(plan.counts[rows], scores, first_call)

    def join_plans(self, states: Sequence[State]) -> OrderedPlan:
        plans: list[OrderedPlan] = [state.plan for state in states]
        most = max(plan.counts.shape[1] for plan in plans)
        counts = [torch.nn.functional.pad(plan.counts, (0, most - plan.counts.shape[1])) for plan in plans]
        scores = cat_optional([plan.scores for plan in plans])
        return OrderedPlan(torch.cat(counts), scores, cat_optional([plan.first_call for plan in plans]))


def start_ordered(
    canvas: Canvas, counts: list[list[int]], scores: Tensor | None, first_call: Tensor | None = None
) -> State:
    """The state before the first call, for the number of positions that each call of each sequence writes."""
    calls = torch.tensor([len(row) for row in counts], device=canvas.ids.device)
    padded = pad_sequence([torch.tensor(row, dtype=torch.int64) for row in counts], batch_first=True)
    plan = OrderedPlan(padded.to(canvas.ids.device), scores, first_call)
    return State.start(canvas, calls, padded.shape[1], plan)


def tokens_per_call(masks: int, steps: int | None, pace: Schedule) -> list[int]:
    """The number of positions that each call writes: at least one, otherwise as close to the schedule as possible.

    Of n masks the schedule leaves n (1 - alpha) on average. With `left` rounded, left + call must not increase from
    one call to the next, nor be below the number of calls.
    """
    calls = min(steps or masks, masks)
    call = torch.arange(calls + 1, dtype=torch.float64)
    left = (masks * pace.mask_rate(1.0 - call / max(calls, 1)) + 0.5).floor()
    left = (left + call).clamp_min(calls).cummin(dim=0).values - call
    return (-left.diff()).long().tolist()


class AdaptiveSampler(Sampler):
    """Each call writes the positions that `select_positions` returns, at least the one with the highest score.

    Until the end `calls` is an upper limit: one more call for every mask that is left.
    """

    adaptive: ClassVar[bool] = True

    @property
    @abstractmethod
    def score(self) -> PositionScore:
        """The score that orders the positions."""

    @abstractmethod
    def select_positions(self, scores_BL: Tensor) -> Tensor:
        """[B, L] the positions to write, from scores that are -inf where nothing is masked."""

    def begin(self, canvas: Canvas) -> State:
        calls = canvas.masked.sum(dim=1)
        return State.start(canvas, calls, int(calls.max()), plan=None)

    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        prediction = predict_masked(denoiser, state, fraction_written(state))
        scores = position_scores(denoiser, state, prediction, self.score, token_sampler)
        selected = (self.select_positions(scores) | (ranks(scores) == 0)) & state.masked
        state = write_selected(denoiser, state, prediction, selected, token_sampler)
        left, own = state.masked.sum(dim=1), state.own_call
        calls = torch.where(left > 0, own + left, state.calls.clamp_max(own))
        return replace(state, calls=calls, total=int((calls + (state.call - own)).max()))

    def select_plan(self, state: State, rows: Tensor) -> None:
        return None

    def join_plans(self, states: Sequence[State]) -> None:
        return None


class ThresholdSampler(AdaptiveSampler):
    """Writes all positions where the most likely token is above a threshold, `by` confidence or by the planner."""

    name: Literal["threshold"] = "threshold"
    by: Literal["confidence", "planner"] = "confidence"
    above: float = Field(default=0.9, ge=0, le=1)

    @property
    def score(self) -> PositionScore:
        return self.by

    @property
    def needs_planner(self) -> bool:
        return self.by == "planner"

    def select_positions(self, scores_BL: Tensor) -> Tensor:
        return scores_BL > self.above


class EntropyBoundedSampler(AdaptiveSampler):
    """Writes the largest set, in order of entropy, with (sum of entropies - largest entropy) <= gamma nats.

    That difference bounds the cost of drawing the tokens of the set independently.
    """

    name: Literal["entropy_bounded"] = "entropy_bounded"
    gamma: float = Field(default=0.1, ge=0, allow_inf_nan=False)

    @property
    def score(self) -> PositionScore:
        return "entropy"

    def select_positions(self, scores_BL: Tensor) -> Tensor:
        entropy, order = (-scores_BL).sort(dim=1, stable=True)
        before = torch.nn.functional.pad(entropy.cumsum(dim=1)[:, :-1], (1, 0))
        return torch.empty_like(before, dtype=torch.bool).scatter(1, order, before <= self.gamma)


def fraction_written(state: State) -> Tensor:
    """[B] the fraction of the canvas written so far: alpha for samplers that do not follow a schedule."""
    return 1.0 - state.masked.sum(dim=1) / state.canvas.masked.sum(dim=1).clamp_min(1)


def ranks(scores_BL: Tensor) -> Tensor:
    """[B, L] the rank of each position in its sequence, 0 for the highest score; ties go to the earlier position."""
    order = scores_BL.argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter(1, order, rank)


def position_scores(
    denoiser: Any, state: State, prediction: Prediction, score: PositionScore, token_sampler: AnyTokenSampler
) -> Tensor:
    """[B, L] the score of each masked position, higher if it is more certain; -inf at all other positions.

    The score `planner` is the probability that the most likely token is correct. If the token sampler fills rows with
    EOS, the probability of EOS counts as uncertainty (see `TextEnds.adjust_prediction`).
    """
    eos = token_sampler.eos if isinstance(token_sampler, JointTokenSampler) else None
    ends = None if eos is None else TextEnds.of(state, eos)

    def score_rows(hidden_ND: Tensor, at: Positions) -> Tensor:
        log_p = denoiser.head(hidden_ND).float().log_softmax(-1)
        if score == "planner":
            correct = denoiser.plan(hidden_ND, log_p.amax(dim=-1)).float().sigmoid()
            return correct if ends is None else ends.adjust_planner(correct, log_p, at)
        return SCORES[score](log_p if ends is None else ends.adjust_prediction(log_p, at))

    return map_positions(state, prediction, denoiser.config.vocab_size, score_rows)


def _margin(log_p_NV: Tensor) -> Tensor:
    """The probability of the most likely token minus that of the second."""
    first, second = log_p_NV.topk(2, dim=-1).values.exp().unbind(dim=-1)
    return first - second


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "confidence": lambda log_p: log_p.amax(dim=-1).exp(),
    "margin": _margin,
    "entropy": lambda log_p: (log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(dim=-1),
}
"""Scores [N] of log-probabilities [N, V]."""
