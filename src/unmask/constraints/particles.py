"""Sequential Monte Carlo: particles weighted by a constraint, or by any score of the text.

With a score the distribution of the texts tends to p(x) exp(score(x)) / Z. Each call draws the whole canvas from the
prediction, but writes only the sampler's positions. The drawn canvas is scored, and the change of the score since the
call before is added to the log-weight. The changes add up to the score of the finished text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmask.random import Purpose, bits, uniform
from unmask.samplers.base import (
    AnyTokenSampler,
    Canvas,
    Head,
    JointTokenSampler,
    ParticleWeights,
    Positions,
    Prediction,
    Sampler,
    State,
    TokenDraw,
)

FINAL_DRAW = -1
"""The step of the random number that chooses one of the finished particles."""
ROWS_PER_CHUNK = 512
"""Positions whose logits are in memory at a time."""

Score = Callable[[Tensor, Tensor], Tensor]
"""Finished canvases [B, L] and their attention masks [B, L] to scores [B]."""


@torch.no_grad()
def run_particles(
    sampler: Sampler, denoiser: Any, canvas: Canvas, token_sampler: JointTokenSampler, particles: int
) -> Iterator[State]:
    """Yield every state of one particle per sequence, chosen by weight at the end.

    The log-weight of the last state is the log of the mean weight.
    """
    state = sampler.begin(repeat_canvas(canvas, particles))
    zero = torch.zeros(len(state.ids), dtype=torch.float64, device=canvas.ids.device)
    state = replace(state, particle_weights=ParticleWeights(zero, zero))
    history, parents = [state], [torch.arange(len(state.ids), device=canvas.ids.device)]
    while state.call < state.total:
        state, rows = _resample(sampler, sampler.step(denoiser, state, token_sampler), canvas.seeds)
        history.append(state)
        parents.append(rows)
    yield from reversed(_trace_back(history, parents, canvas))


def repeat_canvas(canvas: Canvas, particles: int) -> Canvas:
    """Every sequence `particles` times, each with a new seed except for the first."""
    number = torch.arange(particles, device=canvas.ids.device)
    other = bits(canvas.seeds[:, None], Purpose.PARTICLE, position=number)
    seeds = torch.where(number == 0, canvas.seeds[:, None], other).flatten()
    rows = torch.arange(len(canvas.ids), device=canvas.ids.device).repeat_interleave(particles)
    return replace(canvas.select(rows), seeds=seeds)


def _resample(sampler: Sampler, state: State, seeds: Tensor) -> tuple[State, Tensor]:
    """Resample the particles of sequences with an effective sample size below half; also returns their parents [B n].

    Systematic resampling: n evenly spaced points, shifted by one random number per sequence.
    """
    assert state.particle_weights is not None
    log_w = state.particle_weights.log_weight.view(len(seeds), -1)
    n = log_w.shape[1]
    own = torch.arange(n, device=seeds.device).expand_as(log_w)
    points = (own + uniform(seeds, Purpose.RESAMPLE, state.call)[:, None].double()) / n
    share = log_w.softmax(dim=1)
    uneven = n * share.square().sum(dim=1, keepdim=True) > 2.0
    index = torch.where(uneven, _invert_cdf(share, points), own)
    weight = torch.where(uneven, _log_mean(log_w), log_w)
    rows = (index + n * torch.arange(len(seeds), device=seeds.device)[:, None]).flatten()
    weights = ParticleWeights(weight.flatten(), state.particle_weights.log_potential[rows])
    return replace(sampler.select(state, rows), particle_weights=weights), rows


def _trace_back(history: list[State], parents: list[Tensor], canvas: Canvas) -> list[State]:
    """The states of one particle per sequence, drawn by weight, from the last to the first."""
    final = history[-1].particle_weights
    assert final is not None
    log_w = final.log_weight.view(len(canvas.seeds), -1)
    points = uniform(canvas.seeds, Purpose.RESAMPLE, FINAL_DRAW)[:, None].double()
    index = _invert_cdf(log_w.softmax(dim=1), points)[:, 0]
    rows = index + log_w.shape[1] * torch.arange(len(index), device=index.device)
    states = []
    for state, parent in zip(reversed(history), reversed(parents), strict=True):
        states.append(state.select(rows, canvas, None))
        rows = parent[rows]
    weights = ParticleWeights(_log_mean(log_w)[:, 0], final.log_potential.new_zeros(len(index)))
    states[0] = replace(states[0], particle_weights=weights)
    calls, total = states[0].calls, states[0].total
    return [replace(state, calls=calls, total=total) for state in states if state.call <= total]


def _invert_cdf(share: Tensor, points: Tensor) -> Tensor:
    """[B, m] the particles at points [B, m] of (0, 1), for shares [B, n] of the particles."""
    ends = share.cumsum(dim=1)
    return torch.searchsorted(ends / ends[:, -1:], points, right=True).clamp_max(share.shape[1] - 1)


def _log_mean(log_w: Tensor) -> Tensor:
    return log_w.logsumexp(dim=1, keepdim=True) - math.log(log_w.shape[1])


class ScoredTokenSampler(JointTokenSampler):
    """Weights particles by a score; each writes exactly the tokens that the token sampler alone would draw."""

    def __init__(self, token_sampler: AnyTokenSampler, score: Score) -> None:
        self.token_sampler = token_sampler
        self.score = score
        self.eos = token_sampler.eos if isinstance(token_sampler, JointTokenSampler) else None

    def sample_jointly(self, head: Head, prediction: Prediction, state: State, targets: Positions) -> TokenDraw:
        ids, confidence = state.ids.clone(), torch.ones(state.ids.shape, device=state.ids.device)
        for at, tokens, probability in self._draw(head, prediction, state, targets):
            ids[at], confidence[at] = tokens, probability.float()
        score = self.score(ids, state.canvas.attention_mask).to(ids.device, torch.float64)
        zero = torch.zeros_like(score)
        before = state.particle_weights or ParticleWeights(zero, zero)
        weights = ParticleWeights(before.log_weight + score - before.log_potential, score)
        return TokenDraw(ids[targets], confidence[targets], weights)

    def _draw(
        self, head: Head, prediction: Prediction, state: State, targets: Positions
    ) -> Iterator[tuple[Positions, Tensor, Tensor]]:
        """Positions with tokens and confidences: all masked positions, then the targets if they are drawn jointly."""
        at, hidden = prediction
        if isinstance(self.token_sampler, JointTokenSampler):
            for chosen in (at, targets):
                drawn = self.token_sampler.sample_jointly(head, prediction, state, chosen)
                yield chosen, drawn.tokens, drawn.confidence
            return
        for part in torch.arange(len(hidden), device=hidden.device).split(ROWS_PER_CHUNK):
            row, column = at.rows[part], at.columns[part]
            greedy = state.in_greedy_tail(self.token_sampler, row)
            seeds, logits = state.canvas.seeds[row], head(hidden[part])
            drawn_tokens = self.token_sampler.sample(logits, seeds, state.call, column, greedy_N=greedy)
            yield Positions(row, column), *drawn_tokens
