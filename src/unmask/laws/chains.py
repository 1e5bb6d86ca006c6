"""The Markov chain of every sampler, enumerated: the distribution of its output on a small canvas.

`@output_distribution.register` defines it for a sampler class and its subclasses.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
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
from unmask.samplers.block import BlockSampler
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler, tokens_per_call
from unmask.samplers.remasking import CorrectorSampler, ReMDMConfSampler, ReMDMSampler

V, L, MASK = 4, 3, 1
BLANK, PROMPTED = torch.full((L,), MASK), torch.tensor([MASK, 2, MASK])


@singledispatch
def output_distribution(sampler: Sampler, denoiser: Any, start: Tensor) -> Tensor:
    """[V^L] the probabilities of all canvases that a sampler can return for `start` [L]."""
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
        return distribution_from_nll(denoiser, start, lambda ids: exact.any_order(denoiser, ids, start == MASK).nll)
    return exact.step_distribution(denoiser, start, exact.grid_rates(sampler.schedule, sampler.steps))


@output_distribution.register(AnalyticSampler)
def analytic_chain(sampler: AnalyticSampler, denoiser: Any, start: Tensor) -> Tensor:
    """T analytic steps of the scores, whatever their mass."""
    return exact.score_distribution(denoiser, start, exact.grid_rates(sampler.schedule, sampler.steps))


@output_distribution.register(AutoregressiveSampler)
def left_to_right_chain(sampler: AutoregressiveSampler, denoiser: Any, start: Tensor) -> Tensor:
    """Every masked position given the tokens before it."""
    return distribution_from_nll(
        denoiser, start, lambda ids: exact.left_to_right_nll(denoiser, ids, start == MASK).sum(dim=1)
    )


# ---- ordered decoding -----------------------------------------------------------------------------------------------

XTheta = list[list[float]]
"""x_theta at every position of a canvas."""
RevealSets = list[tuple[float, tuple[int, ...]]]
"""The sets of positions that a call may reveal, with their probabilities."""
Choose = Callable[[XTheta, list[int], int], RevealSets]
"""A function of x_theta, the masked positions and the number of the call."""


@output_distribution.register(OrderedSampler)
def ordered_chain(sampler: OrderedSampler, denoiser: Any, start: Tensor) -> Tensor:
    """The planned number of positions per call, in the sampler's order or uniformly at random."""
    counts = tokens_per_call(int((start == MASK).sum()), sampler.steps, sampler.pace)

    def choose(rows: XTheta, masked: list[int], call: int) -> RevealSets:
        if sampler.order == "uniform":
            sets = list(itertools.combinations(masked, counts[call]))
            return [(1.0 / len(sets), one) for one in sets]
        return [(1.0, tuple(_ranked(sampler.order, rows, masked)[: counts[call]]))]

    return _revealing_chain(denoiser, start, choose)


@output_distribution.register(BlockSampler)
def block_chain(sampler: BlockSampler, denoiser: Any, start: Tensor) -> Tensor:
    """The leftmost block that has masks, its planned number of positions per call, in the sampler's order."""
    open_ = [position for position, token in enumerate(start.tolist()) if token == MASK]
    blocks = [open_[first : first + sampler.size] for first in range(0, len(open_), sampler.size)]
    plan = sampler.calls_by_block(len(open_))
    calls = [(set(block), count) for block, counts in zip(blocks, plan, strict=True) for count in counts]

    def choose(rows: XTheta, masked: list[int], call: int) -> RevealSets:
        block, count = calls[call]
        inside = [position for position in masked if position in block]
        return [(1.0, tuple(_ranked(sampler.order, rows, inside)[:count]))]

    return _revealing_chain(denoiser, start, choose)


@output_distribution.register(ThresholdSampler)
def threshold_chain(sampler: ThresholdSampler, denoiser: Any, start: Tensor) -> Tensor:
    """All positions above the threshold, at least the best one."""
    score = _planner_probability if sampler.by == "planner" else max

    def choose(rows: XTheta, masked: list[int], call: int) -> RevealSets:
        above = tuple(position for position in masked if score(rows[position]) > sampler.above)
        return [(1.0, above or tuple(_ranked(sampler.by, rows, masked)[:1]))]

    return _revealing_chain(denoiser, start, choose)


@output_distribution.register(EntropyBoundedSampler)
def entropy_bounded_chain(sampler: EntropyBoundedSampler, denoiser: Any, start: Tensor) -> Tensor:
    """The largest set, in order of entropy, for which the sum of entropies minus the largest is at most gamma."""

    def choose(rows: XTheta, masked: list[int], call: int) -> RevealSets:
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


def _ranked(order: str, rows: XTheta, masked: list[int]) -> list[int]:
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


@output_distribution.register(ReMDMSampler)
@output_distribution.register(ReMDMConfSampler)
def remasking_chain(sampler: ReMDMSampler | ReMDMConfSampler, denoiser: Any, start: Tensor) -> Tensor:
    """T steps that remask tokens by the sampler's strategy."""
    *_, (_, last) = remasking_states(sampler, denoiser, start)
    return last.distribution(denoiser.config.vocab_size)


def remasking_states(
    sampler: ReMDMSampler | ReMDMConfSampler, denoiser: Any, start: Tensor
) -> Iterator[tuple[float, ChainState]]:
    """The mask rate and the state after each step, from t = 1 to 0.

    A step masks tokens with probability rho and reveals masked positions with the probability that takes the mask rate
    from t to s: alpha_s = (1 - rho) alpha_t + (1 - alpha_t) reveal. The strategy "cap_conf" distributes rho over the
    tokens by a softmax of minus their confidence. The published ReMDM-conf distributes the limit of rho and reveals
    masked positions as without remasking.
    """
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    to_mask = F.one_hot(torch.tensor(mask), V).double()
    published, plain = isinstance(sampler, ReMDMConfSampler), sampler
    if isinstance(plain, ReMDMConfSampler):
        plain = ReMDMSampler(steps=sampler.steps, schedule=sampler.schedule, eta=0.0)
    by_confidence, loop = published or plain.strategy == "cap_conf", plain.strategy == "loop"
    state, writable = ChainState.at(start), start == mask
    for step in reversed(range(sampler.steps)):
        t, s = (step + 1) / sampler.steps, step / sampler.steps
        times = torch.tensor([_loop_time(plain, time) if loop else time for time in (t, s)], dtype=torch.float64)
        rate_t, rate_s = sampler.schedule.mask_rate(times).tolist()
        limit = min(1.0, rate_s / (1.0 - rate_t)) if rate_t < 1 else 1.0
        remask = plain.eta * limit if plain.strategy == "rescale" else min(plain.eta, limit)
        if loop and not (s >= plain.t_off and t <= plain.t_on):
            remask = 0.0
        reveal = ((1 - rate_s) - (1 - remask) * (1 - rate_t)) / rate_t
        rho = torch.full(state.ids.shape, remask, dtype=torch.float64)
        if by_confidence:
            revealed = (state.ids != mask) & writable
            weight = (-state.confidence).exp() * revealed
            share = weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-300)
            mass = limit if published else remask * revealed.sum(dim=1, keepdim=True)
            rho = (mass * share).clamp_max(limit)
        x_theta = exact.log_conditionals(denoiser, state.ids, 1.0 - rate_t).exp()
        kept = F.one_hot(state.ids, V).double()
        kernel = torch.where(
            (state.ids == mask)[..., None],
            reveal * x_theta + (1 - reveal) * to_mask,
            (1 - rho[..., None]) * kept + rho[..., None] * to_mask,
        )
        state = state.move(torch.where(writable[:, None], kernel, kept), x_theta if by_confidence else None)
        yield rate_s, state


def _loop_time(sampler: ReMDMSampler, time: float) -> float:
    """The time of the schedule at a time of the loop strategy, constant between `t_on` and `t_off`."""
    hold = float(sampler.schedule.inverse(torch.tensor(sampler.alpha_on, dtype=torch.float64)))
    if time > sampler.t_on:
        return hold + (1 - hold) * (time - sampler.t_on) / (1 - sampler.t_on)
    return hold if time >= sampler.t_off else hold * time / sampler.t_off


@output_distribution.register(CorrectorSampler)
def corrector_chain(sampler: CorrectorSampler, denoiser: Any, start: Tensor) -> Tensor:
    """Ancestral steps that alternate with corrections: remask a fraction of all tokens and redraw them."""
    V, mask, fraction = denoiser.config.vocab_size, denoiser.config.mask_token_id, sampler.fraction
    rates = exact.grid_rates(sampler.schedule, -(-sampler.steps // 2)).flip(0).tolist()
    state = ChainState.at(start)
    for call in range(sampler.steps):
        rate_t, rate_s = rates[call // 2 : call // 2 + 2]
        if call % 2:
            rate_t = 1.0 - (1.0 - fraction) * (1.0 - rate_s)
            kept, to_mask = F.one_hot(state.ids, V).double(), F.one_hot(torch.tensor(mask), V).double()
            remasked = (1.0 - fraction) * kept + fraction * to_mask
            state = state.move(torch.where((start == mask)[:, None], remasked, kept))
        x_theta = exact.log_conditionals(denoiser, state.ids, 1.0 - rate_t).exp()
        state = state.move(exact.bayes_posterior(x_theta, state.ids, rate_s, rate_t, mask))
    return state.distribution(V)
