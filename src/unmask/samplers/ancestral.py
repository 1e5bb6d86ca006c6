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

from unmask.process import MAX_STEPS
from unmask.random import Purpose, uniform
from unmask.registry import field
from unmask.samplers.base import (
    Canvas,
    JointTokenSampler,
    Positions,
    Sampler,
    State,
    hidden_rows,
    select_sequences,
    write_at,
)
from unmask.samplers.token_sampling import TokenSampler
from unmask.schedules import LogLinear, Schedule

FEW = 8
"""Positions of a sequence that a call is asked about for hardly more than the price of one."""


@dataclass(frozen=True)
class AncestralPlan:
    """Which positions each call reveals: `rows` and `positions` [N] in the order of the calls.

    `places` [N] counts the positions that one call reveals in one sequence, of which there are `most` at most: rounded
    up, so that it is the same for nearly all seeds, and what is recorded for one canvas serves the next.
    `ends` [C + 1] tells where each call's part of them begins and ends, `time` [B, C] the time of each call,
    `calls` [B] how many a sequence needs, `group` [B, L] the call that reveals each position, -1 for given ones.
    """

    rows: Tensor
    positions: Tensor
    places: Tensor
    most: int
    ends: list[int]
    time: Tensor
    calls: list[int]
    group: Tensor

    def part(self, call: int) -> slice:
        """The part of the positions that a call reveals."""
        return slice(self.ends[call], self.ends[call + 1])

    def walking(self, call: int) -> list[int] | None:
        """The sequences that a call is made for; None for all, as long as more than half have still to go.

        So a network sees few shapes, and finished sequences cost less than half of what is computed.
        """
        still = [row for row, calls in enumerate(self.calls) if calls > call]
        return None if 2 * len(still) > len(self.calls) else still


class AncestralSampler(Sampler):
    """Uniform order in T steps of the schedule's time (`steps=None`: one position at a time)."""

    name: Literal["ancestral"] = "ancestral"
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]

    def begin(self, canvas: Canvas) -> State:
        group, time = self.groups(canvas)
        plan = _plan(group, time, canvas.ids.device)
        calls = torch.tensor(plan.calls, device=canvas.ids.device)
        return State.start(canvas, calls, max(plan.calls), plan)

    def select(self, state: State, rows: Tensor) -> State:
        plan: AncestralPlan = state.plan
        taken = _plan(plan.group[rows.cpu()], plan.time[rows], state.ids.device)
        return state.select(rows, state.canvas, taken)

    def groups(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """[B, L] the call that reveals each position, -1 for given ones, and [B, L] the time of each call, on the CPU.

        tau = alpha^{-1}(1 - v) is drawn for every masked position; positions are grouped by step, latest first.
        """
        schedule: Schedule = self.schedule
        masked, seeds = canvas.masked.cpu(), canvas.seeds.cpu()
        position = torch.arange(masked.shape[1])
        tau = schedule.time_at(uniform(seeds[:, None], Purpose.REVEAL, position=position[None]))
        tau, order = tau.masked_fill(~masked, -1.0).sort(dim=1, descending=True, stable=True)
        time = tau if self.steps is None else torch.ceil(tau * self.steps).clamp_min(1.0) / self.steps
        first = torch.ones_like(masked)
        if self.steps is not None:
            first[:, 1:] = time[:, 1:] != time[:, :-1]
        group = first.cumsum(dim=1) - 1
        at_call = torch.zeros_like(time).scatter(1, group, time)
        group = group.masked_fill(tau < 0, -1)
        return torch.empty_like(group).scatter(1, order, group), at_call

    def step(self, denoiser: Any, state: State, rule: TokenSampler | JointTokenSampler) -> State:
        plan: AncestralPlan = state.plan
        part = plan.part(state.call)
        at = wanted = Positions(plan.rows[part], plan.positions[part])
        place: Tensor | None = plan.places[part]
        if isinstance(rule, JointTokenSampler) and rule.sees_all:
            at, place = Positions(*state.masked.nonzero(as_tuple=True)), None
        hidden = self._rows(denoiser, state, plan.walking(state.call), *at, place)
        return write_at(denoiser, state, hidden, rule, at, wanted)

    def _rows(
        self,
        denoiser: Any,
        state: State,
        walking: list[int] | None,
        row: Tensor,
        position: Tensor,
        place: Tensor | None = None,
    ) -> Tensor:
        """[N, D] what the network makes of the positions (row, position) [N], of the sequences that are walking.

        `place` [N], where they are few, counts those of a sequence.
        """
        ids, time, attention = state.ids, state.plan.time[:, state.call], state.canvas.attention_mask
        if walking is not None:
            chosen = torch.tensor(walking, device=ids.device)
            ids, time, attention = ids[chosen], time[chosen], attention[chosen]
            row = torch.searchsorted(chosen, row)
            denoiser = select_sequences(denoiser, chosen)
        told: dict[str, Any] = {"alpha": self.schedule.alpha(time)}
        told["attention_mask"] = attention if state.canvas.has_pads else None
        if place is None or 2 * state.plan.most > ids.shape[1]:
            return denoiser.hidden(ids, **told)[row, position]
        positions = ids.new_zeros(len(ids), state.plan.most)
        positions[row, place] = position
        return hidden_rows(denoiser, ids, positions, **told)[row, place]


def _plan(group: Tensor, time: Tensor, device: torch.device) -> AncestralPlan:
    """The plan of groups [B, L], on the CPU, and times [B, L] of calls."""
    calls = group.max(dim=1).values + 1
    total = int(calls.max())
    row, position = (group >= 0).nonzero(as_tuple=True)
    order = group[row, position].argsort(stable=True)
    ends = torch.bincount(group[group >= 0], minlength=total).cumsum(dim=0).tolist()
    place = _places(group)[row, position]
    row, position, place = (tensor[order].to(device) for tensor in (row, position, place))
    most = int(place.max()) + 1 if len(place) else 0
    return AncestralPlan(row, position, place, _rounded(most), [0, *ends], time.to(device), calls.tolist(), group)


def _rounded(most: int) -> int:
    """The next power of two, at least `FEW`; one at a time stays one."""
    return most if most <= 1 else max(FEW, 1 << (most - 1).bit_length())


def _places(group: Tensor) -> Tensor:
    """[B, L] how many positions of the same call [B, L] stand before each in its sequence."""
    order = group.argsort(dim=1, stable=True)
    ranked = group.gather(1, order)
    index = torch.arange(group.shape[1]).expand_as(group)
    new = torch.ones_like(ranked, dtype=torch.bool)
    new[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    since = index - index.where(new, 0).cummax(dim=1).values
    return torch.empty_like(group).scatter(1, order, since)
