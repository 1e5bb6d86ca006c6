"""The Markov chain of every sampler, enumerated: the law of what it makes of a small canvas.

`chain_of.register` says it for a class and its subclasses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from unmask.laws import exact, orders, remasking
from unmask.laws.base import LawBroken, describe
from unmask.laws.tables import every_canvas
from unmask.samplers import ordered
from unmask.samplers.adaptive import EntropyBounded, Threshold
from unmask.samplers.analytic import Analytic
from unmask.samplers.ar import LeftToRight
from unmask.samplers.base import Sampler
from unmask.samplers.corrector import Corrector
from unmask.samplers.ordered import Ordered
from unmask.samplers.remdm import ReMDM
from unmask.samplers.reveal import Reveal

V, L, MASK = 4, 3, 1
BLANK, STARTED = torch.full((L,), MASK), torch.tensor([MASK, 2, MASK])


@singledispatch
def chain_of(sampler: Sampler, denoiser: Any, start: Tensor) -> Tensor:
    """[V^L] the law of what a sampler makes of a canvas [L], or a message that says what to write for a new one."""
    raise LawBroken(
        f"The laws do not know the Markov chain of {describe(sampler)}: write a function (sampler, denoiser, start) -> "
        f"law [V^L] that enumerates it and register it with @chain_of.register({type(sampler).__name__}), see "
        "unmask.laws.chains."
    )


@chain_of.register(Reveal)
def reveal_chain(sampler: Reveal, denoiser: Any, start: Tensor) -> Tensor:
    """Ancestral sampling in T steps of the posterior, or the limit of one position at a time."""
    if sampler.steps is None:
        return over_canvases(denoiser, start, lambda ids: exact.any_order_nll(denoiser, ids, start == MASK))
    rates = sampler.schedule.mask_rate(torch.arange(sampler.steps + 1, dtype=torch.float64) / sampler.steps)
    return exact.step_law(denoiser, start, rates)


@chain_of.register(Analytic)
def analytic_chain(sampler: Analytic, denoiser: Any, start: Tensor) -> Tensor:
    """Steps of the scores themselves, whatever their mass."""
    rates = sampler.schedule.mask_rate(torch.arange(sampler.steps + 1, dtype=torch.float64) / sampler.steps)
    return exact.score_law(denoiser, start, rates)


@chain_of.register(LeftToRight)
def left_to_right_chain(sampler: LeftToRight, denoiser: Any, start: Tensor) -> Tensor:
    """Every masked position from the tokens before it."""
    return over_canvases(denoiser, start, lambda ids: exact.left_to_right_nll(denoiser, ids, start == MASK).sum(dim=1))


@chain_of.register(Ordered)
def ordered_chain(sampler: Ordered, denoiser: Any, start: Tensor) -> Tensor:
    """The planned number of positions in their order, or any of them by lot."""
    portions = ordered.portions(int((start == MASK).sum()), sampler.steps, sampler.pace)
    return orders.chosen_law(denoiser, start, orders.in_portions(sampler.order, portions))


@chain_of.register(Threshold)
def threshold_chain(sampler: Threshold, denoiser: Any, start: Tensor) -> Tensor:
    """All positions that are sure enough."""
    return orders.chosen_law(denoiser, start, orders.above(sampler.above, sampler.by))


@chain_of.register(EntropyBounded)
def entropy_bounded_chain(sampler: EntropyBounded, denoiser: Any, start: Tensor) -> Tensor:
    """The largest set in order of entropy that the bound allows."""
    return orders.chosen_law(denoiser, start, orders.within_entropy(sampler.gamma))


@chain_of.register(ReMDM)
def remasking_chain(sampler: ReMDM, denoiser: Any, start: Tensor) -> Tensor:
    """T steps that mask again with the chance of the strategy."""
    return remasking.remasking_law(denoiser, start, turns(sampler))


def turns(sampler: ReMDM) -> list[remasking.Turn]:
    """The strategies, one step at a time."""
    hold = float(sampler.schedule.inverse(torch.tensor(sampler.alpha_on, dtype=torch.float64)))
    turns = []
    for step in reversed(range(sampler.steps)):
        t, s = (step + 1) / sampler.steps, step / sampler.steps
        clock = [_held(sampler, time, hold) if sampler.strategy == "loop" else time for time in (t, s)]
        rate_t, rate_s = sampler.schedule.mask_rate(torch.tensor(clock, dtype=torch.float64)).tolist()
        limit = min(1.0, rate_s / (1.0 - rate_t)) if rate_t < 1 else 1.0
        remask = sampler.eta * limit if sampler.strategy == "rescale" else min(sampler.eta, limit)
        if sampler.strategy == "loop" and not (s >= sampler.t_off and t <= sampler.t_on):
            remask = 0.0
        turns.append(remasking.Turn(rate_t, rate_s, remask, limit, sampler.strategy == "conf"))
    return turns


def _held(sampler: ReMDM, time: float, hold: float) -> float:
    """The time of the schedule at a time of a loop, which stands still from `t_on` down to `t_off`."""
    if time > sampler.t_on:
        return hold + (1 - hold) * (time - sampler.t_on) / (1 - sampler.t_on)
    return hold if time >= sampler.t_off else hold * time / sampler.t_off


@chain_of.register(Corrector)
def correcting_chain(sampler: Corrector, denoiser: Any, start: Tensor) -> Tensor:
    """Steps of ancestral sampling and corrections by turns."""
    steps = -(-sampler.steps // 2)
    time = torch.arange(steps, -1, -1, dtype=torch.float64) / steps
    rates = sampler.schedule.mask_rate(time).tolist()
    return remasking.correcting_law(denoiser, start, rates, sampler.steps, sampler.fraction)


def over_canvases(denoiser: Any, start: Tensor, nll: Callable[[Tensor], Tensor]) -> Tensor:
    """[V^L] exp(-nll) at the finished canvases that agree with `start` [L], 0 elsewhere."""
    vocab_size = denoiser.config.vocab_size
    finished = exact.outcomes(start, vocab_size, denoiser.config.mask_token_id)
    law_of_x = torch.zeros(len(every_canvas(vocab_size, len(start))), dtype=torch.float64)
    law_of_x[(finished * vocab_size ** torch.arange(len(start))).sum(dim=1)] = (-nll(finished)).exp()
    return law_of_x
