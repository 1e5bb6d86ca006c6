"""The Markov chain of every sampler, enumerated: the distribution of its output on a small canvas.

`@output_distribution.register` defines it for a sampler class and its subclasses.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.laws import exact
from unmask.laws.base import LawBroken, describe
from unmask.laws.tables import all_canvases, canvas_index
from unmask.samplers.analytic import AnalyticSampler
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Sampler
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler, tokens_per_call
from unmask.samplers.remasking import CorrectorSampler, ReMDMSampler

V, L, MASK = 4, 3, 1
BLANK, PROMPTED = torch.full((L,), MASK), torch.tensor([MASK, 2, MASK])


@singledispatch
def output_distribution(sampler: Sampler, denoiser: Any, start: Tensor) -> Tensor:
    """[V^L] the probabilities of all canvases that a sampler can make of `start` [L]."""
    raise LawBroken(
        f"The Markov chain of {describe(sampler)} is unknown: write a function (sampler, denoiser, start) -> "
        f"probabilities [V^L] that enumerates it and decorate it with "
        f"@output_distribution.register({type(sampler).__name__}), as in unmask.laws.chains."
    )


def distribution_from_nll(denoiser: Any, start: Tensor, nll: Callable[[Tensor], Tensor]) -> Tensor:
    """[V^L] exp(-nll) at the finished canvases that agree with `start` [L], 0 elsewhere."""
    vocab_size = denoiser.config.vocab_size
    finished = exact.outcomes(start, vocab_size, denoiser.config.mask_token_id)
    probability = torch.zeros(vocab_size ** len(start), dtype=torch.float64)
    probability[canvas_index(finished, vocab_size)] = (-nll(finished)).exp()
    return probability


# ---- ancestral, analytic and autoregressive sampling ----------------------------------------------------------------


@output_distribution.register(AncestralSampler)
def ancestral_chain(sampler: AncestralSampler, denoiser: Any, start: Tensor) -> Tensor:
    """T steps of the posterior, or the limit of one position at a time."""
    if sampler.steps is None:
        return distribution_from_nll(denoiser, start, lambda ids: exact.any_order_nll(denoiser, ids, start == MASK))
    rates = sampler.schedule.mask_rate(torch.arange(sampler.steps + 1, dtype=torch.float64) / sampler.steps)
    return exact.step_distribution(denoiser, start, rates)


@output_distribution.register(AnalyticSampler)
def analytic_chain(sampler: AnalyticSampler, denoiser: Any, start: Tensor) -> Tensor:
    """T analytic steps of the scores, whatever their mass."""
    rates = sampler.schedule.mask_rate(torch.arange(sampler.steps + 1, dtype=torch.float64) / sampler.steps)
    return exact.score_distribution(denoiser, start, rates)


@output_distribution.register(AutoregressiveSampler)
def left_to_right_chain(sampler: AutoregressiveSampler, denoiser: Any, start: Tensor) -> Tensor:
    """Every masked position given the tokens before it."""

    def nll(ids: Tensor) -> Tensor:
        return exact.left_to_right_nll(denoiser, ids, start == MASK).sum(dim=1)

    return distribution_from_nll(denoiser, start, nll)


# ---- ordered decoding -----------------------------------------------------------------------------------------------

Rows = list[list[float]]
"""x_theta at every position of a canvas."""
Choose = Callable[[Rows, list[int], int], list[tuple[float, tuple[int, ...]]]]
"""(x_theta, masked positions, call) -> the sets of positions that this call may reveal, with their probabilities."""


@output_distribution.register(OrderedSampler)
def ordered_chain(sampler: OrderedSampler, denoiser: Any, start: Tensor) -> Tensor:
    """The planned number of positions per call, in the sampler's order or uniformly at random."""
    counts = tokens_per_call(int((start == MASK).sum()), sampler.steps, sampler.pace)

    def choose(rows: Rows, masked: list[int], call: int) -> list[tuple[float, tuple[int, ...]]]:
        if sampler.order == "uniform":
            sets = list(itertools.combinations(masked, counts[call]))
            return [(1.0 / len(sets), one) for one in sets]
        return [(1.0, tuple(_ranked(sampler.order, rows, masked)[: counts[call]]))]

    return _revealing_chain(denoiser, start, choose)


@output_distribution.register(ThresholdSampler)
def threshold_chain(sampler: ThresholdSampler, denoiser: Any, start: Tensor) -> Tensor:
    """All positions above the threshold, at least the best one."""
    score = _planner_probability if sampler.by == "planner" else max

    def choose(rows: Rows, masked: list[int], call: int) -> list[tuple[float, tuple[int, ...]]]:
        above = tuple(position for position in masked if score(rows[position]) > sampler.above)
        return [(1.0, above or tuple(_ranked(sampler.by, rows, masked)[:1]))]

    return _revealing_chain(denoiser, start, choose)


@output_distribution.register(EntropyBoundedSampler)
def entropy_bounded_chain(sampler: EntropyBoundedSampler, denoiser: Any, start: Tensor) -> Tensor:
    """The largest set, in order of entropy, for which the sum of entropies minus the largest is at most gamma."""

    def choose(rows: Rows, masked: list[int], call: int) -> list[tuple[float, tuple[int, ...]]]:
        ranked = _ranked("entropy", rows, masked)
        sums = [sum(_entropy(rows[position]) for position in ranked[:size]) for size in range(len(masked))]
        return [(1.0, tuple(ranked[: sum(one <= sampler.gamma for one in sums)]))]

    return _revealing_chain(denoiser, start, choose)


def _revealing_chain(denoiser: Any, start: Tensor, choose: Choose) -> Tensor:
    """[V^L] the output distribution if each call reveals the positions given by `choose`.

    The alpha of a call is the share of the masked positions of `start` [L] that are revealed already.
    """
    mask = denoiser.config.mask_token_id
    canvases = all_canvases(denoiser.config.vocab_size, len(start))
    alpha = 1.0 - (canvases == mask).sum(dim=1).double() / max(1, int((start == mask).sum()))
    x_theta = exact.log_conditionals(denoiser, canvases, alpha).exp().tolist()
    index = {tuple(canvas): number for number, canvas in enumerate(canvases.tolist())}
    probability = {tuple(start.tolist()): 1.0}
    for call in itertools.count():
        if not any(mask in z for z in probability):
            break
        after: dict[tuple[int, ...], float] = defaultdict(float)
        for z, p_z in probability.items():
            rows, masked = x_theta[index[z]], [position for position, token in enumerate(z) if token == mask]
            if not masked:
                after[z] += p_z
                continue
            for p_set, positions in choose(rows, masked, call):
                for tokens in itertools.product(range(len(rows[0])), repeat=len(positions)):
                    p_tokens = math.prod(rows[i][token] for i, token in zip(positions, tokens, strict=True))
                    if p_tokens:
                        written = dict(zip(positions, tokens, strict=True))
                        after[tuple(written.get(i, token) for i, token in enumerate(z))] += p_z * p_set * p_tokens
        probability = after
    out = torch.zeros(len(canvases), dtype=torch.float64)
    for z, p_z in probability.items():
        out[index[z]] = p_z
    return out


def _ranked(order: str, rows: Rows, masked: list[int]) -> list[int]:
    """Masked positions, best first; ties keep the order of positions."""
    score: dict[str, Callable[[int], float]] = {
        "left_to_right": lambda position: -position,
        "confidence": lambda position: max(rows[position]),
        "margin": lambda position: sorted(rows[position])[-1] - sorted(rows[position])[-2],
        "entropy": lambda position: -_entropy(rows[position]),
        "planner": lambda position: _planner_probability(rows[position]),
    }
    return sorted(masked, key=lambda position: -score[order](position))


def _planner_probability(row: list[float]) -> float:
    """The sigmoid of `tables.planner_log_odds`."""
    return 1 / (1 + math.exp(-4 * sum(p * math.sin(2 * token + 1) for token, p in enumerate(row))))


def _entropy(row: list[float]) -> float:
    return -sum(p * math.log(p) for p in row if p)


# ---- remasking ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChainState:
    """A distribution over canvases [S, L] with `probability` [S].

    `confidence` [S, L] is the probability that each token had when it was revealed, 0 where it is not needed.
    """

    ids: Tensor
    confidence: Tensor
    probability: Tensor

    @classmethod
    def at(cls, start: Tensor) -> ChainState:
        """The state that is `start` [L] with probability 1."""
        zero = torch.zeros(1, len(start), dtype=torch.float64)
        return cls(start[None], zero, torch.ones(1, dtype=torch.float64))

    def move(self, kernel_SLV: Tensor, x_theta: Tensor | None = None) -> ChainState:
        """One step with independent positions; with `x_theta` [S, L, V] the confidence of new tokens is recorded."""
        _, L, V = kernel_SLV.shape
        canvases = all_canvases(V, L)
        probability = self.probability[:, None] * exact.product_over_positions(kernel_SLV, canvases)
        before, after = probability.nonzero(as_tuple=True)
        ids, confidence = canvases[after], torch.zeros(len(before), L, dtype=torch.float64)
        if x_theta is not None:
            new = x_theta[before].gather(2, ids[..., None])[..., 0]
            confidence = torch.where(self.ids[before] == ids, self.confidence[before], new)
        # merge equal states
        states, number = torch.cat([ids.double(), confidence], dim=1).unique(dim=0, return_inverse=True)
        total = torch.zeros(len(states), dtype=torch.float64).index_add(0, number, probability[before, after])
        return ChainState(states[:, :L].long(), states[:, L:], total)

    def distribution(self, vocab_size: int) -> Tensor:
        """[V^L] the probabilities of all canvases."""
        out = torch.zeros(vocab_size ** self.ids.shape[1], dtype=torch.float64)
        return out.index_add(0, canvas_index(self.ids, vocab_size), self.probability)


@dataclass(frozen=True)
class RemaskingStep:
    """A step from mask rate `rate_t` to `rate_s` that remasks a token with probability `remask`, at most `limit`.

    `by_confidence`: the remasking probability is shared among tokens by a softmax of minus their confidence.
    """

    rate_t: float
    rate_s: float
    remask: float = 0.0
    limit: float = 1.0
    by_confidence: bool = False


@output_distribution.register(ReMDMSampler)
def remasking_chain(sampler: ReMDMSampler, denoiser: Any, start: Tensor) -> Tensor:
    """T steps that remask tokens by the sampler's strategy."""
    state, writable = ChainState.at(start), start == denoiser.config.mask_token_id
    for step in remasking_steps(sampler):
        state = apply_remasking_step(denoiser, state, writable, step)
    return state.distribution(denoiser.config.vocab_size)


def remasking_steps(sampler: ReMDMSampler) -> list[RemaskingStep]:
    """The steps of a ReMDM sampler, from t = 1 to 0."""
    loop = sampler.strategy == "loop"
    hold = float(sampler.schedule.inverse(torch.tensor(sampler.alpha_on, dtype=torch.float64)))
    steps = []
    for step in reversed(range(sampler.steps)):
        t, s = (step + 1) / sampler.steps, step / sampler.steps
        clock = [_loop_time(sampler, time, hold) if loop else time for time in (t, s)]
        rate_t, rate_s = sampler.schedule.mask_rate(torch.tensor(clock, dtype=torch.float64)).tolist()
        limit = min(1.0, rate_s / (1.0 - rate_t)) if rate_t < 1 else 1.0
        remask = sampler.eta * limit if sampler.strategy == "rescale" else min(sampler.eta, limit)
        if loop and not (s >= sampler.t_off and t <= sampler.t_on):
            remask = 0.0
        steps.append(RemaskingStep(rate_t, rate_s, remask, limit, sampler.strategy == "conf"))
    return steps


def _loop_time(sampler: ReMDMSampler, time: float, hold: float) -> float:
    """The time of the schedule at a time of the loop strategy, constant between `t_on` and `t_off`."""
    if time > sampler.t_on:
        return hold + (1 - hold) * (time - sampler.t_on) / (1 - sampler.t_on)
    return hold if time >= sampler.t_off else hold * time / sampler.t_off


def apply_remasking_step(denoiser: Any, state: ChainState, writable: Tensor, step: RemaskingStep) -> ChainState:
    """The state after one step; tokens outside `writable` [L] stay.

    A masked token is revealed with the probability that takes the mask rate from `rate_t` to `rate_s`:
    alpha_s = (1 - rho) alpha_t + (1 - alpha_t) reveal.
    """
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    x_theta = exact.log_conditionals(denoiser, state.ids, 1.0 - step.rate_t).exp()
    reveal = ((1 - step.rate_s) - (1 - step.remask) * (1 - step.rate_t)) / step.rate_t
    rho = torch.full(state.ids.shape, step.remask, dtype=torch.float64)
    if step.by_confidence:
        revealed = (state.ids != mask) & writable
        weight = (-state.confidence).exp() * revealed
        share = weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-300)
        rho = (step.remask * revealed.sum(dim=1, keepdim=True) * share).clamp_max(step.limit)
    kept, to_mask = F.one_hot(state.ids, V).double(), F.one_hot(torch.tensor(mask), V).double()
    kernel = torch.where(
        (state.ids == mask)[..., None],
        reveal * x_theta + (1 - reveal) * to_mask,
        (1 - rho[..., None]) * kept + rho[..., None] * to_mask,
    )
    return state.move(torch.where(writable[:, None], kernel, kept), x_theta if step.by_confidence else None)


@output_distribution.register(CorrectorSampler)
def corrector_chain(sampler: CorrectorSampler, denoiser: Any, start: Tensor) -> Tensor:
    """Ancestral steps that alternate with corrections: remask a fraction of all tokens and redraw them."""
    V, mask, fraction = denoiser.config.vocab_size, denoiser.config.mask_token_id, sampler.fraction
    steps = -(-sampler.steps // 2)
    times = torch.arange(steps, -1, -1, dtype=torch.float64) / steps
    rates = list(itertools.pairwise(sampler.schedule.mask_rate(times).tolist()))
    state = ChainState.at(start)
    for call in range(sampler.steps):
        rate_t, rate_s = rates[call // 2]
        if call % 2:
            rate_t = 1.0 - (1.0 - fraction) * (1.0 - rate_s)
            kept, to_mask = F.one_hot(state.ids, V).double(), F.one_hot(torch.tensor(mask), V).double()
            remasked = (1.0 - fraction) * kept + fraction * to_mask
            state = state.move(torch.where((start == mask)[:, None], remasked, kept))
        x_theta = exact.log_conditionals(denoiser, state.ids, 1.0 - rate_t).exp()
        state = state.move(exact.bayes_posterior(x_theta, state.ids, rate_s, rate_t, mask))
    return state.distribution(V)
