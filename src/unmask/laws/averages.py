"""Exact averages of objectives over their noise, and what those averages should be.

For a few tokens all masks are enumerated and time is integrated by quadrature, by handing the objective noise made to
produce each case. How an objective reads its noise is the one thing that must be known about it: `draws_of.register`
says it for a class and its subclasses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.laws import exact
from unmask.laws.base import LawBroken, describe
from unmask.laws.tables import every_canvas
from unmask.objectives.ar import AR
from unmask.objectives.base import Noise, Objective
from unmask.objectives.d3pm import D3PM
from unmask.objectives.sedd import SEDD
from unmask.objectives.subs import MaskCount, Subs
from unmask.schedules import Schedule


@dataclass(frozen=True)
class Draws:
    """Noise that meets every case once, and the probability [N] of each case."""

    noise: Noise
    weight: Tensor


@singledispatch
def draws_of(objective: Objective, schedule: Schedule, open_: Tensor) -> Draws:
    """All cases of the noise of an objective, or a message that says what to write for a new one."""
    raise LawBroken(
        f"The laws cannot average {describe(objective)} over its noise: write a function (objective, schedule, open) "
        f"-> Draws that enumerates it and register it with @draws_of.register({type(objective).__name__}), see "
        "unmask.laws.averages."
    )


@draws_of.register(Subs)
@draws_of.register(D3PM)
@draws_of.register(SEDD)
def threshold_noise(objective: Objective, schedule: Schedule, open_: Tensor) -> Draws:
    """Those that mask where u < 1 - alpha(t), t uniform or on the grid i/T: every t with every set of small u."""
    steps = getattr(objective, "steps", None)
    t, weight = exact.over_time(schedule.bends()) if steps is None else _one_a_step(steps)
    rate = schedule.mask_rate(t if steps is None else torch.ceil(t * steps) / steps)
    small = every_canvas(2, len(open_)).bool()
    u = torch.where(small, 0.5 * rate[:, None, None], 0.5 + 0.5 * rate[:, None, None])
    chance = torch.where(small, rate[:, None, None], 1.0 - rate[:, None, None]).prod(dim=-1)
    return Draws(Noise(t.repeat_interleave(len(small)), u.flatten(0, 1)), (weight[:, None] * chance).flatten())


@draws_of.register(MaskCount)
def count_noise(objective: Objective, schedule: Schedule, open_: Tensor) -> Draws:
    """n = ceil(t L) of the open u are the smallest, any set of them, and the n-th of them is Beta(n, L - n + 1).

    Positions that are not open get smaller numbers still, which must not matter.
    """
    length = int(open_.sum())
    small = every_canvas(2, len(open_)).bool()
    small = small[(small & ~open_).sum(dim=1).eq(0) & small.any(dim=1)]
    n = small.sum(dim=1)
    node, weight = exact.gauss_legendre(16)
    sets = torch.tensor([math.comb(length, int(k)) for k in n], dtype=torch.float64)
    density = n[:, None] * sets[:, None] * node ** (n[:, None] - 1) * (1.0 - node) ** (length - n[:, None])
    chance = density * weight / sets[:, None] / length
    u = torch.where(small[:, None], node[:, None] * _descending(small)[:, None], 0.5 + 0.5 * node[:, None])
    u = torch.where(open_, u, 1e-6)
    t = ((n - 0.5) / length)[:, None].expand_as(chance)
    return Draws(Noise(t.flatten(), u.flatten(0, 1)), chance.flatten())


@draws_of.register(AR)
def no_noise(objective: Objective, schedule: Schedule, open_: Tensor) -> Draws:
    """Nothing is random."""
    one = torch.ones(1, dtype=torch.float64)
    return Draws(Noise(0.5 * one, torch.full((1, len(open_)), 0.5, dtype=torch.float64)), one)


def average(objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, open_: Tensor) -> Tensor:
    """[L] the nats of the objective at each position of a text [L], averaged exactly over its noise."""
    draws = draws_of(objective, schedule, open_)
    count = len(draws.weight)
    batch = Batch.of(text.expand(count, -1), frozen=(~open_).expand(count, -1))
    with torch.no_grad():
        terms = objective.loss(denoiser, batch, schedule, draws.noise)
    return (draws.weight[:, None] * terms.nelbo.double()).sum(dim=0)


def reference(objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, open_: Tensor) -> Tensor:
    """[L] what the objective should be worth at each position, by what it declares itself to be."""
    if objective.causal:
        return exact.left_to_right_nll(denoiser, text[None], open_)[0]
    rates = rates_of(objective, schedule)
    if rates is None:
        return exact.continuous_bound(denoiser, text[None], open_)[0]
    switches = (objective.needs_mask_logit, not objective.needs_visible_rows)
    return exact.step_bound(denoiser, text[None], open_, rates, *switches)[0]


def likelihood(objective: Objective, denoiser: Any, schedule: Schedule, text: Tensor, open_: Tensor) -> float:
    """-log p(text) of the very process whose bound the objective is."""
    if objective.causal:
        return float(exact.left_to_right_nll(denoiser, text[None], open_).sum())
    rates = rates_of(objective, schedule)
    if rates is None:
        return float(exact.any_order_nll(denoiser, text[None], open_))
    start = text.masked_fill(open_, denoiser.config.mask_token_id)
    law_of_x = exact.step_law(denoiser, start, rates, objective.needs_mask_logit)
    if objective.needs_visible_rows:
        law_of_x = exact.rewritten(denoiser, law_of_x, open_, objective.needs_mask_logit)
    code = int((text * denoiser.config.vocab_size ** torch.arange(len(text))).sum())
    return -math.log(float(law_of_x[code]))


def rates_of(objective: Objective, schedule: Schedule) -> Tensor | None:
    """[T + 1] 1 - alpha on the grid of an objective that has steps; None in continuous time."""
    steps = getattr(objective, "steps", None)
    return None if steps is None else schedule.mask_rate(torch.arange(steps + 1, dtype=torch.float64) / steps)


def _one_a_step(steps: int) -> tuple[Tensor, Tensor]:
    """[T] a time inside every step, and their equal weights."""
    t = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    return t, torch.full_like(t, 1 / steps)


def _descending(small: Tensor) -> Tensor:
    """[S, L] 1 at the first member of each set, and smaller and smaller numbers at the others."""
    rank = small.long().cumsum(dim=1)
    return torch.where(small, 1.0 / rank.clamp_min(1), 1.0).double()
