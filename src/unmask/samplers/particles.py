"""Several walks for every sequence of a canvas, resampled by how well they go: the model's law, given the match.

A walk under a constraint draws from K(z' | z) Z(z'; z) / Z(z), where K is the model's step, Z(z) the chance that the
prediction at z satisfies the constraint, and Z(z'; z) the same when z' is known. With Z as twist the weight of a walk
grows by Z(z') / Z(z'; z) at each step; the mean weight of finished walks is unbiased for the chance of a match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unmask.random import Purpose, bits, uniform
from unmask.samplers.base import Canvas, Evidence, JointRule, Sampler, State

LAST = -1
"""The step by whose random number a finished walk is chosen."""


@torch.no_grad()
def walk_together(sampler: Sampler, denoiser: Any, canvas: Canvas, rule: JointRule, particles: int) -> Iterator[State]:
    """Every state of the chosen walk of each sequence; the last has the log of the mean weight as its log-weight."""
    state = sampler.begin(crowd(canvas, particles))
    nothing = torch.zeros(len(state.ids), dtype=torch.float64, device=canvas.ids.device)
    state = replace(state, evidence=Evidence(nothing, nothing))
    history, parents = [state], [torch.arange(len(state.ids), device=canvas.ids.device)]
    while state.call < state.total:
        state, rows = _resample(sampler, sampler.step(denoiser, state, rule), canvas.seeds)
        history.append(state)
        parents.append(rows)
    yield from reversed(_lineage(history, parents, canvas))


def crowd(canvas: Canvas, particles: int) -> Canvas:
    """Every sequence several times over, each time with another seed; the first has the sequence's own."""
    number = torch.arange(particles, device=canvas.ids.device)
    other = bits(canvas.seeds[:, None], Purpose.PARTICLE, position=number)
    seeds = torch.where(number == 0, canvas.seeds[:, None], other).flatten()
    rows = torch.arange(len(canvas.ids), device=canvas.ids.device).repeat_interleave(particles)
    return replace(canvas.part(rows), seeds=seeds)


def _resample(sampler: Sampler, state: State, seeds: Tensor) -> tuple[State, Tensor]:
    """Walks [B n] drawn by their weights where these have become uneven, and the rows [B n] that they were.

    Systematic resampling: n evenly spaced points, moved together by one random number a sequence.
    """
    assert state.evidence is not None
    log_w = state.evidence.log_weight.view(len(seeds), -1)
    n = log_w.shape[1]
    own = torch.arange(n, device=seeds.device).expand_as(log_w)
    point = (own + uniform(seeds, Purpose.RESAMPLE, state.call)[:, None].double()) / n
    share = log_w.softmax(dim=1)
    uneven = n * share.square().sum(dim=1, keepdim=True) > 2.0
    index = torch.where(uneven, _at(share, point), own)
    weight = torch.where(uneven, _log_mean(log_w), log_w)
    rows = (index + n * torch.arange(len(seeds), device=seeds.device)[:, None]).flatten()
    taken = sampler.take(state, rows)
    return replace(taken, evidence=Evidence(weight.flatten(), state.evidence.log_rest[rows])), rows


def _lineage(history: list[State], parents: list[Tensor], canvas: Canvas) -> list[State]:
    """The states of one walk a sequence, chosen by weight, from the last to the first."""
    final = history[-1].evidence
    assert final is not None
    log_w = final.log_weight.view(len(canvas.seeds), -1)
    point = uniform(canvas.seeds, Purpose.RESAMPLE, LAST)[:, None].double()
    index = _at(log_w.softmax(dim=1), point)[:, 0]
    rows = index + log_w.shape[1] * torch.arange(len(index), device=index.device)
    states = []
    for state, parent in zip(reversed(history), reversed(parents), strict=True):
        states.append(state.take(rows, canvas, None))
        rows = parent[rows]
    states[0] = replace(states[0], evidence=Evidence(_log_mean(log_w)[:, 0], final.log_rest.new_zeros(len(index))))
    calls, total = states[0].calls, states[0].total
    return [replace(state, calls=calls, total=total) for state in states if state.call <= total]


def _at(share: Tensor, point: Tensor) -> Tensor:
    """[B, m] the walks at some points [B, m] of (0, 1), which the shares [B, n] divide among them."""
    ends = share.cumsum(dim=1)
    return torch.searchsorted(ends / ends[:, -1:], point, right=True).clamp_max(share.shape[1] - 1)


def _log_mean(log_w: Tensor) -> Tensor:
    return log_w.logsumexp(dim=1, keepdim=True) - math.log(log_w.shape[1])
