"""The Markov chain of every sampler, enumerated: the law of what it makes of a small canvas.

`output_distribution.register` says it for a class and its subclasses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.base import LawBroken, describe
from unmask.laws.tables import all_canvases
from unmask.samplers.analytic import AnalyticSampler
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Sampler
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler, tokens_per_call
from unmask.samplers.remasking import CorrectorSampler, ReMDMSampler

Chances = list[list[float]]
"""x_theta at every position of a canvas."""
Sets = list[tuple[float, tuple[int, ...]]]
Canvases = list[tuple[tuple[int, ...], float]]
Choice = Callable[[Chances, list[int], int], Sets]
"""(x_theta, masked positions, call): the sets of positions that the call may write, each with its chance."""


def chosen_law(denoiser: Any, start: Tensor, choose: Choice) -> Tensor:
    """[V^L] the law of finished canvases when each call from `start` [L] writes what `choose` says.

    The network is told how much of what is to be written is.
    """
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    canvases = all_canvases(V, len(start))
    written = 1.0 - (canvases == mask).sum(dim=1).double() / max(1, int((start == mask).sum()))
    x_theta = exact.log_conditionals(denoiser, canvases, written).exp().tolist()
    law = {tuple(start.tolist()): 1.0}
    for call in itertools.count():
        if not any(mask in z for z in law):
            break
        after: dict[tuple[int, ...], float] = {}
        for z, chance in law.items():
            said = x_theta[sum(token * V**position for position, token in enumerate(z))]
            for new, likely in _next(z, said, mask, choose, call):
                after[new] = after.get(new, 0.0) + chance * likely
        law = after
    out = torch.zeros(len(canvases), dtype=torch.float64)
    for z, chance in law.items():
        out[sum(token * V**position for position, token in enumerate(z))] = chance
    return out


def _next(z: tuple[int, ...], said: Chances, mask: int, choose: Choice, call: int) -> Canvases:
    """The canvases that one call can make of another, with their chances."""
    masked = [position for position, token in enumerate(z) if token == mask]
    if not masked:
        return [(z, 1.0)]
    out: Canvases = []
    for chance, places in choose(said, masked, call):
        for tokens in itertools.product(range(len(said[0])), repeat=len(places)):
            new = list(z)
            for place, token in zip(places, tokens, strict=True):
                new[place] = token
            likely = math.prod(said[place][token] for place, token in zip(places, tokens, strict=True))
            if likely:
                out.append((tuple(new), chance * likely))
    return out


def in_portions(order: str, portions: list[int]) -> Choice:
    """So many positions a call, in an order."""

    def choose(said: Chances, masked: list[int], call: int) -> Sets:
        if order == "uniform":
            sets = list(itertools.combinations(masked, portions[call]))
            return [(1.0 / len(sets), one) for one in sets]
        return [(1.0, tuple(_best_first(order, said, masked)[: portions[call]]))]

    return choose


def above(threshold: float, by: str) -> Choice:
    """All positions that are likelier right than a threshold, as the network or its planner thinks, or the surest."""
    worth = _planned if by == "planner" else max

    def choose(said: Chances, masked: list[int], call: int) -> Sets:
        sure = tuple(position for position in masked if worth(said[position]) > threshold)
        return [(1.0, sure or tuple(_best_first(by, said, masked)[:1]))]

    return choose


def within_entropy(gamma: float) -> Choice:
    """The largest set, in order of entropy, whose sum of entropies less the largest is at most gamma."""

    def choose(said: Chances, masked: list[int], call: int) -> Sets:
        ranked = _best_first("entropy", said, masked)
        sums = [sum(_entropy(said[position]) for position in ranked[:size]) for size in range(len(masked))]
        return [(1.0, tuple(ranked[: sum(one <= gamma for one in sums)]))]

    return choose


def _best_first(order: str, said: Chances, masked: list[int]) -> list[int]:
    """Masked positions in their order; of equal ones the first is first."""
    worth: dict[str, Callable[[int], float]] = {
        "left_to_right": lambda position: -position,
        "confidence": lambda position: max(said[position]),
        "margin": lambda position: sorted(said[position])[-1] - sorted(said[position])[-2],
        "entropy": lambda position: -_entropy(said[position]),
        "planner": lambda position: _planned(said[position]),
    }
    return sorted(masked, key=lambda position: -worth[order](position))


def _planned(row: list[float]) -> float:
    """The chance that the planner of a table gives."""
    return 1 / (1 + math.exp(-4 * sum(p * math.sin(2 * token + 1) for token, p in enumerate(row))))


def _entropy(row: list[float]) -> float:
    return -sum(p * math.log(p) for p in row if p)


@dataclass(frozen=True)
class ChainState:
    """Different walks: canvases [S, L], the chance [S, L] that each token had when it was written (0 where none is
    remembered), and how likely each walk is [S]."""

    ids: Tensor
    trust: Tensor
    chance: Tensor


@dataclass(frozen=True)
class RemaskingStep:
    """A step from the mask rate `rate_t` to `rate_s` that masks a token again with a chance `remask`, at most `limit`.

    `by_trust`: that chance is shared out among the tokens by how unlikely they were.
    """

    rate_t: float
    rate_s: float
    remask: float = 0.0
    limit: float = 1.0
    by_trust: bool = False


def remasking_law(denoiser: Any, start: Tensor, remasking_steps: list[RemaskingStep]) -> Tensor:
    """[V^L] the law of finished canvases from `start` [L], whose given tokens stay."""
    walks = _at(start)
    open_ = start == denoiser.config.mask_token_id
    for turn in remasking_steps:
        walks = remasking_step(denoiser, walks, open_, turn)
    return _law(walks, denoiser.config.vocab_size)


def correcting_law(denoiser: Any, start: Tensor, levels: list[float], calls: int, fraction: float) -> Tensor:
    """[V^L] the law of finished canvases when steps between mask rates and corrections of the lower one alternate."""
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    walks, open_ = _at(start), start == mask
    steps = list(itertools.pairwise(levels))
    for call in range(calls):
        rate_t, rate_s = steps[call // 2]
        if call % 2:
            rate_t = 1.0 - (1.0 - fraction) * (1.0 - rate_s)
            kept = torch.nn.functional.one_hot(walks.ids, V).double()
            gone = torch.nn.functional.one_hot(torch.tensor(mask), V).double()
            walks = _move(walks, torch.where(open_[:, None], (1.0 - fraction) * kept + fraction * gone, kept), None)
        x_theta = exact.log_conditionals(denoiser, walks.ids, 1.0 - rate_t).exp()
        walks = _move(walks, exact.bayes(x_theta, walks.ids, rate_s, rate_t, mask), None)
    return _law(walks, V)


def remasking_step(denoiser: Any, walks: ChainState, open_: Tensor, turn: RemaskingStep) -> ChainState:
    """The state one step later. A masked token is written with the chance that takes the mask rate from `rate_t` to
    `rate_s`: alpha_s = (1 - rho) alpha_t + (1 - alpha_t) write."""
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    x_theta = exact.log_conditionals(denoiser, walks.ids, 1.0 - turn.rate_t).exp()
    write = ((1 - turn.rate_s) - (1 - turn.remask) * (1 - turn.rate_t)) / turn.rate_t
    kept = torch.nn.functional.one_hot(walks.ids, V).double()
    gone = torch.nn.functional.one_hot(torch.tensor(mask), V).double()
    rho = _shared(walks, open_, turn, mask)[..., None]
    masked = (walks.ids == mask)[..., None]
    kernel = torch.where(masked, write * x_theta + (1 - write) * gone, (1 - rho) * kept + rho * gone)
    return _move(walks, torch.where(open_[:, None], kernel, kept), x_theta if turn.by_trust else None)


def _shared(walks: ChainState, open_: Tensor, turn: RemaskingStep, mask: int) -> Tensor:
    """[S, L] the chance that each token is masked again."""
    if not turn.by_trust:
        return torch.full(walks.ids.shape, turn.remask, dtype=torch.float64)
    written = (walks.ids != mask) & open_
    weight = (-walks.trust).exp() * written
    share = weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-300)
    return (turn.remask * written.sum(dim=1, keepdim=True) * share).clamp_max(turn.limit)


def _at(start: Tensor) -> ChainState:
    nothing = torch.zeros(1, len(start), dtype=torch.float64)
    return ChainState(start[None], nothing, torch.ones(1, dtype=torch.float64))


def _move(walks: ChainState, kernel_SLV: Tensor, x_theta: Tensor | None) -> ChainState:
    """Every walk to every canvas that it may become; with `x_theta` [S, L, V] what is written is remembered."""
    _, L, V = kernel_SLV.shape
    canvases = all_canvases(V, L)
    each = torch.stack([kernel_SLV[:, place, token] for place, token in enumerate(canvases.T)])
    likely = walks.chance[:, None] * each.prod(dim=0)
    walk, canvas = likely.nonzero(as_tuple=True)
    ids, trust = canvases[canvas], torch.zeros(len(walk), L, dtype=torch.float64)
    if x_theta is not None:
        fresh = x_theta[walk].gather(2, ids[..., None])[..., 0]
        trust = torch.where(walks.ids[walk] == ids, walks.trust[walk], fresh)
    return _merged(ids, trust, likely[walk, canvas])


def _merged(ids: Tensor, trust: Tensor, chance: Tensor) -> ChainState:
    """ChainState that differ in nothing, as one."""
    seen, number = torch.cat([ids.double(), trust], dim=1).unique(dim=0, return_inverse=True)
    total = torch.zeros(len(seen), dtype=torch.float64).index_add(0, number, chance)
    return ChainState(seen[:, : ids.shape[1]].long(), seen[:, ids.shape[1] :], total)


def _law(walks: ChainState, vocab_size: int) -> Tensor:
    length = walks.ids.shape[1]
    code = (walks.ids * vocab_size ** torch.arange(length)).sum(dim=1)
    return torch.zeros(vocab_size**length, dtype=torch.float64).index_add(0, code, walks.chance)


V, L, MASK = 4, 3, 1
BLANK, PROMPTED = torch.full((L,), MASK), torch.tensor([MASK, 2, MASK])


@singledispatch
def output_distribution(sampler: Sampler, denoiser: Any, start: Tensor) -> Tensor:
    """[V^L] the law of what a sampler makes of a canvas [L], or a message that says what to write for a new one."""
    raise LawBroken(
        f"The laws do not know the Markov chain of {describe(sampler)}: write a function (sampler, denoiser, start) -> "
        f"law [V^L] that enumerates it and register it with @output_distribution.register({type(sampler).__name__}), "
        "see unmask.laws.chains."
    )


@output_distribution.register(AncestralSampler)
def reveal_chain(sampler: AncestralSampler, denoiser: Any, start: Tensor) -> Tensor:
    """Ancestral sampling in T steps of the posterior, or the limit of one position at a time."""
    if sampler.steps is None:
        return distribution_from_nll(denoiser, start, lambda ids: exact.any_order_nll(denoiser, ids, start == MASK))
    rates = sampler.schedule.mask_rate(torch.arange(sampler.steps + 1, dtype=torch.float64) / sampler.steps)
    return exact.step_law(denoiser, start, rates)


@output_distribution.register(AnalyticSampler)
def analytic_chain(sampler: AnalyticSampler, denoiser: Any, start: Tensor) -> Tensor:
    """Steps of the scores themselves, whatever their mass."""
    rates = sampler.schedule.mask_rate(torch.arange(sampler.steps + 1, dtype=torch.float64) / sampler.steps)
    return exact.score_law(denoiser, start, rates)


@output_distribution.register(AutoregressiveSampler)
def left_to_right_chain(sampler: AutoregressiveSampler, denoiser: Any, start: Tensor) -> Tensor:
    """Every masked position from the tokens before it."""
    return distribution_from_nll(
        denoiser, start, lambda ids: exact.left_to_right_nll(denoiser, ids, start == MASK).sum(dim=1)
    )


@output_distribution.register(OrderedSampler)
def ordered_chain(sampler: OrderedSampler, denoiser: Any, start: Tensor) -> Tensor:
    """The planned number of positions in their order, or any of them by lot."""
    counts = tokens_per_call(int((start == MASK).sum()), sampler.steps, sampler.pace)
    return chosen_law(denoiser, start, in_portions(sampler.order, counts))


@output_distribution.register(ThresholdSampler)
def threshold_chain(sampler: ThresholdSampler, denoiser: Any, start: Tensor) -> Tensor:
    """All positions that are sure enough."""
    return chosen_law(denoiser, start, above(sampler.above, sampler.by))


@output_distribution.register(EntropyBoundedSampler)
def entropy_bounded_chain(sampler: EntropyBoundedSampler, denoiser: Any, start: Tensor) -> Tensor:
    """The largest set in order of entropy that the bound allows."""
    return chosen_law(denoiser, start, within_entropy(sampler.gamma))


@output_distribution.register(ReMDMSampler)
def remasking_chain(sampler: ReMDMSampler, denoiser: Any, start: Tensor) -> Tensor:
    """T steps that mask again with the chance of the strategy."""
    return remasking_law(denoiser, start, remasking_steps(sampler))


def remasking_steps(sampler: ReMDMSampler) -> list[RemaskingStep]:
    """The strategies, one step at a time."""
    hold = float(sampler.schedule.inverse(torch.tensor(sampler.alpha_on, dtype=torch.float64)))
    remasking_steps = []
    for step in reversed(range(sampler.steps)):
        t, s = (step + 1) / sampler.steps, step / sampler.steps
        clock = [_held(sampler, time, hold) if sampler.strategy == "loop" else time for time in (t, s)]
        rate_t, rate_s = sampler.schedule.mask_rate(torch.tensor(clock, dtype=torch.float64)).tolist()
        limit = min(1.0, rate_s / (1.0 - rate_t)) if rate_t < 1 else 1.0
        remask = sampler.eta * limit if sampler.strategy == "rescale" else min(sampler.eta, limit)
        if sampler.strategy == "loop" and not (s >= sampler.t_off and t <= sampler.t_on):
            remask = 0.0
        remasking_steps.append(RemaskingStep(rate_t, rate_s, remask, limit, sampler.strategy == "conf"))
    return remasking_steps


def _held(sampler: ReMDMSampler, time: float, hold: float) -> float:
    """The time of the schedule at a time of a loop, which stands still from `t_on` down to `t_off`."""
    if time > sampler.t_on:
        return hold + (1 - hold) * (time - sampler.t_on) / (1 - sampler.t_on)
    return hold if time >= sampler.t_off else hold * time / sampler.t_off


@output_distribution.register(CorrectorSampler)
def correcting_chain(sampler: CorrectorSampler, denoiser: Any, start: Tensor) -> Tensor:
    """Steps of ancestral sampling and corrections by remasking_steps."""
    steps = -(-sampler.steps // 2)
    time = torch.arange(steps, -1, -1, dtype=torch.float64) / steps
    rates = sampler.schedule.mask_rate(time).tolist()
    return correcting_law(denoiser, start, rates, sampler.steps, sampler.fraction)


def distribution_from_nll(denoiser: Any, start: Tensor, nll: Callable[[Tensor], Tensor]) -> Tensor:
    """[V^L] exp(-nll) at the finished canvases that agree with `start` [L], 0 elsewhere."""
    vocab_size = denoiser.config.vocab_size
    finished = exact.outcomes(start, vocab_size, denoiser.config.mask_token_id)
    law_of_x = torch.zeros(len(all_canvases(vocab_size, len(start))), dtype=torch.float64)
    law_of_x[(finished * vocab_size ** torch.arange(len(start))).sum(dim=1)] = (-nll(finished)).exp()
    return law_of_x
