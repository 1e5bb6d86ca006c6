"""Ancestral sampling in uniform order. The cached sampler of the paper and first-hitting sampling are the same sampler.

Under SUBS the time at which a position is unmasked does not depend on the network (eq. 7), so all times are drawn
first. Positions whose times fall into the same of T steps are revealed together, from the canvas before that step.
A step that reveals nothing leaves the canvas unchanged, so its network call is skipped. With `steps=None` positions are
revealed one at a time in decreasing order of their times. This is exactly the limit T -> infinity if tokens are drawn
as the network predicts them; see `unmask.samplers.eos` for models with learned padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

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
    hidden_rows,
    select_sequences,
    write_targets,
)
from unmask.schedules import LogLinear, Schedule

MIN_SLOTS = 8
"""The hidden states of so many positions cost about as much as one, so that widths are rounded up to this."""


class AncestralSampler(Sampler):
    """Uniform order in T steps of the schedule (`steps=None`: one position at a time)."""

    name: Literal["ancestral"] = "ancestral"
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    schedule: field("schedule") = LogLinear()  # type: ignore[valid-type]

    def begin(self, canvas: Canvas) -> State:
        plan = make_plan(*self.reveal_calls(canvas), canvas.ids.device)
        calls = torch.tensor(plan.calls, device=canvas.ids.device)
        return State.start(canvas, calls, max(plan.calls), plan)

    def reveal_calls(self, canvas: Canvas) -> tuple[Tensor, Tensor]:
        """[B, L] the call that reveals each position, -1 for given ones, and [B, L] the time of each call, on the CPU.

        The time tau = alpha^{-1}(1 - u) is drawn for every masked position and rounded up to a multiple of 1/T.
        """
        schedule: Schedule = self.schedule
        masked, seeds = canvas.masked.cpu(), canvas.seeds.cpu()
        position = torch.arange(masked.shape[1])
        tau = schedule.time_at(uniform(seeds[:, None], Purpose.REVEAL, position=position[None]))
        tau, order = tau.masked_fill(~masked, -1.0).sort(dim=1, descending=True, stable=True)
        time = tau if self.steps is None else torch.ceil(tau * self.steps).clamp_min(1.0) / self.steps
        starts_call = torch.ones_like(masked)
        if self.steps is not None:
            starts_call[:, 1:] = time[:, 1:] != time[:, :-1]
        call = starts_call.cumsum(dim=1) - 1
        time_of_call = torch.zeros_like(time).scatter(1, call, time)
        call = call.masked_fill(tau < 0, -1)
        return torch.empty_like(call).scatter(1, order, call), time_of_call

    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        plan: AncestralPlan = state.plan
        part = slice(plan.ends[state.call], plan.ends[state.call + 1])
        targets = Positions(plan.rows[part], plan.columns[part])
        needs_all = isinstance(token_sampler, JointTokenSampler) and token_sampler.needs_all_masked
        at = Positions(*state.masked.nonzero(as_tuple=True)) if needs_all else targets
        hidden = self._hidden(denoiser, state, at, None if needs_all else plan.slots[part])
        return write_targets(denoiser, state, Prediction(at, hidden), targets, token_sampler)

    def _hidden(self, denoiser: Any, state: State, at: Positions, slots: Tensor | None) -> Tensor:
        """[N, D] the hidden states at N positions; with `slots` [N] (see `AncestralPlan`) only these are computed."""
        plan: AncestralPlan = state.plan
        ids, attention, row, time = state.ids, state.canvas.attention_mask, at.rows, state.take_own_call(plan.time)
        active = [sequence for sequence, calls in enumerate(plan.calls) if calls > state.call]
        if 2 * len(active) <= len(ids):  # otherwise keep the batch whole, so that the network sees few shapes
            chosen = torch.tensor(active, device=ids.device)
            ids, time, attention = ids[chosen], time[chosen], attention[chosen]
            row = torch.searchsorted(chosen, row)
            denoiser = select_sequences(denoiser, chosen)
        alpha, mask = self.schedule.alpha(time), attention if state.canvas.has_pads else None
        if slots is None or 2 * plan.width > ids.shape[1]:
            return denoiser.hidden(ids, alpha=alpha, attention_mask=mask)[row, at.columns]
        positions = ids.new_zeros(len(ids), plan.width)
        positions[row, slots] = at.columns
        return hidden_rows(denoiser, ids, positions, alpha, mask)[row, slots]

    def select_plan(self, state: State, rows: Tensor) -> AncestralPlan:
        plan: AncestralPlan = state.plan
        return make_plan(plan.call[rows.cpu()], plan.time[rows], state.ids.device)

    def join_plans(self, states: Sequence[State]) -> AncestralPlan:
        later = [state.plan.call - state.call for state in states]
        call = torch.cat(later).clamp_min(-1)
        return make_plan(call, torch.cat([state.plan.time for state in states]), states[0].ids.device)


@dataclass(frozen=True)
class AncestralPlan:
    """The positions `rows` and `columns` [N] in the order in which they are revealed: call c of the batch reveals those
    from `ends[c]` to `ends[c + 1]`, the end excluded."""

    call: Tensor
    """[B, L] the call of the batch that reveals each position, -1 for given ones."""
    time: Tensor
    """[B, L] the time of each of a sequence's own calls."""
    rows: Tensor
    columns: Tensor
    slots: Tensor
    """[N] the index of each position among those that its call reveals in its sequence."""
    width: int
    """The most positions that a call reveals in a sequence, rounded up so that one captured shape serves most seeds."""
    ends: list[int]
    calls: list[int]
    """The number of calls of the batch up to the last one of each sequence."""


def make_plan(call: Tensor, time: Tensor, device: torch.device) -> AncestralPlan:
    """The plan for the call [B, L], on the CPU, that reveals each position, and the times of the calls [B, L]."""
    calls = call.max(dim=1).values + 1
    row, column = (call >= 0).nonzero(as_tuple=True)
    order = call[row, column].argsort(stable=True)
    row, column = row[order], column[order]
    in_order = call[row, column]
    ends = torch.bincount(in_order, minlength=int(calls.max())).cumsum(dim=0).tolist()
    index = torch.arange(len(row))
    starts = torch.ones_like(row, dtype=torch.bool)
    starts[1:] = (row[1:] != row[:-1]) | (in_order[1:] != in_order[:-1])
    slot = index - index.where(starts, 0).cummax(dim=0).values
    width = int(slot.max()) + 1 if len(slot) else 0
    if width > 1:
        width = max(MIN_SLOTS, 1 << (width - 1).bit_length())
    row, column, slot = (tensor.to(device) for tensor in (row, column, slot))
    return AncestralPlan(call, time.to(device), row, column, slot, width, [0, *ends], calls.tolist())
