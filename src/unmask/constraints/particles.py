"""Particles weighed by any score of the text: their law goes to p(x) exp(score(x)) / Z.

Each call draws the whole canvas from the prediction and writes the part of it that it would have written anyway. What
was drawn is scored, and the weight of a walk grows by exp of how its score has changed since the call before; over a
whole walk this adds up to the score of the finished text, whatever the scores between were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmask.random import Purpose, bits, uniform
from unmask.samplers.base import Canvas, Drawn, JointTokenSampler, ParticleWeights, Positions, Sampler, State
from unmask.samplers.token_sampling import TokenSampler

LAST = -1
"""The step by whose random number a finished walk is chosen."""


@torch.no_grad()
def run_particles(
    sampler: Sampler, denoiser: Any, canvas: Canvas, rule: JointTokenSampler, particles: int
) -> Iterator[State]:
    """Every state of the chosen walk of each sequence; the last has the log of the mean weight as its log-weight."""
    state = sampler.begin(repeat_canvas(canvas, particles))
    nothing = torch.zeros(len(state.ids), dtype=torch.float64, device=canvas.ids.device)
    state = replace(state, particle_weights=ParticleWeights(nothing, nothing))
    history, parents = [state], [torch.arange(len(state.ids), device=canvas.ids.device)]
    while state.call < state.total:
        state, rows = _resample(sampler, sampler.step(denoiser, state, rule), canvas.seeds)
        history.append(state)
        parents.append(rows)
    yield from reversed(_lineage(history, parents, canvas))


def repeat_canvas(canvas: Canvas, particles: int) -> Canvas:
    """Every sequence several times over, each time with another seed; the first has the sequence's own."""
    number = torch.arange(particles, device=canvas.ids.device)
    other = bits(canvas.seeds[:, None], Purpose.PARTICLE, position=number)
    seeds = torch.where(number == 0, canvas.seeds[:, None], other).flatten()
    rows = torch.arange(len(canvas.ids), device=canvas.ids.device).repeat_interleave(particles)
    return replace(canvas.select(rows), seeds=seeds)


def _resample(sampler: Sampler, state: State, seeds: Tensor) -> tuple[State, Tensor]:
    """Walks [B n] drawn by their weights where these have become uneven, and the rows [B n] that they were.

    Systematic resampling: n evenly spaced points, moved together by one random number a sequence.
    """
    assert state.particle_weights is not None
    log_w = state.particle_weights.log_weight.view(len(seeds), -1)
    n = log_w.shape[1]
    own = torch.arange(n, device=seeds.device).expand_as(log_w)
    point = (own + uniform(seeds, Purpose.RESAMPLE, state.call)[:, None].double()) / n
    share = log_w.softmax(dim=1)
    uneven = n * share.square().sum(dim=1, keepdim=True) > 2.0
    index = torch.where(uneven, _at(share, point), own)
    weight = torch.where(uneven, _log_mean(log_w), log_w)
    rows = (index + n * torch.arange(len(seeds), device=seeds.device)[:, None]).flatten()
    taken = sampler.select(state, rows)
    return replace(
        taken, particle_weights=ParticleWeights(weight.flatten(), state.particle_weights.log_potential[rows])
    ), rows


def _lineage(history: list[State], parents: list[Tensor], canvas: Canvas) -> list[State]:
    """The states of one walk a sequence, chosen by weight, from the last to the first."""
    final = history[-1].particle_weights
    assert final is not None
    log_w = final.log_weight.view(len(canvas.seeds), -1)
    point = uniform(canvas.seeds, Purpose.RESAMPLE, LAST)[:, None].double()
    index = _at(log_w.softmax(dim=1), point)[:, 0]
    rows = index + log_w.shape[1] * torch.arange(len(index), device=index.device)
    states = []
    for state, parent in zip(reversed(history), reversed(parents), strict=True):
        states.append(state.select(rows, canvas, None))
        rows = parent[rows]
    states[0] = replace(
        states[0], particle_weights=ParticleWeights(_log_mean(log_w)[:, 0], final.log_potential.new_zeros(len(index)))
    )
    calls, total = states[0].calls, states[0].total
    return [replace(state, calls=calls, total=total) for state in states if state.call <= total]


def _at(share: Tensor, point: Tensor) -> Tensor:
    """[B, m] the walks at some points [B, m] of (0, 1), which the shares [B, n] divide among them."""
    ends = share.cumsum(dim=1)
    return torch.searchsorted(ends / ends[:, -1:], point, right=True).clamp_max(share.shape[1] - 1)


def _log_mean(log_w: Tensor) -> Tensor:
    return log_w.logsumexp(dim=1, keepdim=True) - math.log(log_w.shape[1])


Head = Callable[[Tensor], Tensor]
Score = Callable[[Tensor, Tensor], Tensor]
"""Finished canvases [B, L] and where they are real [B, L], to scores [B]."""
ROWS_AT_ONCE = 512
"""Positions whose logits are in memory at once."""


class Scored(JointTokenSampler):
    """A rule whose walks are weighed by a score. What is written is bit for bit what the rule alone would write."""

    def __init__(self, rule: TokenSampler | JointTokenSampler, score: Score) -> None:
        self.rule = rule
        self.score = score
        self.eos = rule.eos if isinstance(rule, JointTokenSampler) else None

    def sample_jointly(self, head: Head, hidden: Tensor, state: State, at: Positions, wanted: Positions) -> Drawn:
        whole, trust = state.ids.clone(), torch.ones(state.ids.shape, device=hidden.device)
        for chosen, tokens, confidence in self._draws(head, hidden, state, at, wanted):
            whole[chosen], trust[chosen] = tokens, confidence.float()
        return Drawn(whole[wanted], trust[wanted], self._evidence(state, whole))

    def _draws(
        self, head: Head, hidden: Tensor, state: State, at: Positions, wanted: Positions
    ) -> Iterator[tuple[Positions, Tensor, Tensor]]:
        """Positions, their tokens and confidences, of all masked positions and last of those that are wanted."""
        if isinstance(self.rule, JointTokenSampler):
            for chosen in (at, wanted):
                drawn = self.rule.sample_jointly(head, hidden, state, at, chosen)
                yield chosen, drawn.tokens, drawn.confidence
            return
        for part in torch.arange(len(hidden), device=hidden.device).split(ROWS_AT_ONCE):
            row, place = at.rows[part], at.places[part]
            seeds, late = state.canvas.seeds[row], state.late(self.rule, row)
            yield Positions(row, place), *self.rule.choose(head(hidden[part]), seeds, state.call, place, late_N=late)

    def _evidence(self, state: State, whole: Tensor) -> ParticleWeights:
        """Here `log_potential` is the score that is in the weight already."""
        score = self.score(whole, state.canvas.attention_mask).to(whole.device, torch.float64)
        before = state.particle_weights or ParticleWeights(torch.zeros_like(score), torch.zeros_like(score))
        return ParticleWeights(before.log_weight + score - before.log_potential, score)
