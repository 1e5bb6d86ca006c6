"""What samplers share that make T calls of every sequence, by a plan that no canvas changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unmask.random import Purpose, uniform
from unmask.samplers.base import (
    Canvas,
    JointTokenSampler,
    Outlook,
    Positions,
    State,
    as_predicted,
    select_sequences,
    write_at,
)
from unmask.samplers.token_sampling import TokenSampler, rows_at_once

Score = Literal["confidence", "margin", "entropy", "planner"]


class Look(NamedTuple):
    """The masked positions of a canvas [N] and what the network makes of them, hidden rows [N, D]."""

    at: Positions
    hidden: Tensor


def look(denoiser: Any, state: State, alpha_B: Tensor) -> Look:
    """One network call. Sequences without masks are left out once they are half of the batch or more."""
    at = Positions(*state.masked.nonzero(as_tuple=True))
    ids, row, attention = state.ids, at.rows, state.canvas.attention_mask
    walking = state.masked.any(dim=1).nonzero()[:, 0]
    if 0 < 2 * len(walking) <= len(ids):
        ids, alpha_B, attention = ids[walking], alpha_B[walking], attention[walking]
        row = torch.searchsorted(walking, row)
        denoiser = select_sequences(denoiser, walking)
    hidden = denoiser.hidden(ids, alpha=alpha_B, attention_mask=attention if state.canvas.has_pads else None)
    return Look(at, hidden[row, at.places])


def part_written(state: State) -> Tensor:
    """[B] how much of what is to be written is: the alpha of a walk that does not follow the clock."""
    return 1.0 - state.masked.sum(dim=1) / state.canvas.masked.sum(dim=1).clamp_min(1)


def score(denoiser: Any, state: State, seen: Look, kind: Score, rule: TokenSampler | JointTokenSampler) -> Tensor:
    """[B, L] how sure the network is of each masked position as the rule sees it, minus infinity at the others."""
    outlook = rule.outlook(state) if isinstance(rule, JointTokenSampler) else as_predicted
    return of_each(state, seen, denoiser.config.vocab_size, partial(_worth, denoiser, kind, outlook))


def of_each(state: State, seen: Look, vocab_size: int, worth: Callable[[Tensor, Positions], Tensor]) -> Tensor:
    """[B, L] one number of each masked position, which `worth` makes of hidden rows [N, D]; minus infinity elsewhere.

    It is given some rows at a time, so that no logits of a canvas are held.
    """
    size = rows_at_once(seen.hidden.device, vocab_size)
    parts = [
        worth(hidden, Positions(row, place))
        for hidden, row, place in zip(*(x.split(size) for x in (seen.hidden, *seen.at)), strict=True)
    ]
    out = torch.full(state.ids.shape, -torch.inf, device=state.ids.device)
    out[seen.at] = torch.cat(parts)
    return out


def ranks(score_BL: Tensor) -> Tensor:
    """[B, L] the place of each position in its sequence, 0 for the highest score; of equal ones the first is first."""
    order = score_BL.argsort(dim=1, descending=True, stable=True)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter(1, order, place)


def write_chosen(
    denoiser: Any, state: State, seen: Look, chosen_BL: Tensor, rule: TokenSampler | JointTokenSampler
) -> State:
    """The next state, in which the chosen ones of the masked positions are written."""
    (index,) = chosen_BL[seen.at].nonzero(as_tuple=True)
    wanted = Positions(seen.at.rows[index], seen.at.places[index])
    return write_at(denoiser, state, seen.hidden, rule, seen.at, wanted, own=index)


def _worth(denoiser: Any, kind: Score, outlook: Outlook, rows_ND: Tensor, at: Positions) -> Tensor:
    """[N] the score of each hidden row; a planner's is the chance that it gives to the most likely token."""
    log_p = denoiser.head(rows_ND).float().log_softmax(-1)
    prospect = outlook(log_p, at)
    if kind == "planner":
        right = denoiser.plan(rows_ND, log_p.amax(dim=-1)).float().sigmoid()
        return (right * prospect.text).masked_fill(prospect.settled, 1.0)
    return SCORES[kind](prospect.log_p)


def _confidence(log_p_NV: Tensor) -> Tensor:
    return log_p_NV.amax(dim=-1).exp()


def _margin(log_p_NV: Tensor) -> Tensor:
    """The most likely token's probability less the second's."""
    first, second = log_p_NV.topk(2, dim=-1).values.exp().unbind(dim=-1)
    return first - second


def _minus_entropy(log_p_NV: Tensor) -> Tensor:
    return (log_p_NV.exp() * log_p_NV.clamp_min(torch.finfo(log_p_NV.dtype).min)).sum(dim=-1)


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "confidence": _confidence,
    "margin": _margin,
    "entropy": _minus_entropy,
}
"""[N] of log-probabilities [N, V], the higher the surer."""


def start(canvas: Canvas, steps: int, plan: Any) -> State:
    """The state before the first of `steps` calls; a sequence without masks needs none."""
    calls = steps * canvas.masked.any(dim=1).long()
    return State.start(canvas, calls, int(calls.max()), plan)


def look_at_time(denoiser: Any, state: State, alpha_T: Tensor) -> Look:
    """One network call, told the alpha that the plan has for it."""
    return look(denoiser, state, alpha_T[state.call].float().to(state.ids.device).expand(len(state.ids)))


def lots(state: State, purpose: Purpose) -> Tensor:
    """[B, L] uniform numbers of this call, one for each position."""
    position = torch.arange(state.ids.shape[1], device=state.ids.device)
    return uniform(state.canvas.seeds[:, None], purpose, state.call, position=position[None])
