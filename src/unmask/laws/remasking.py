"""The law of walks that mask again what they wrote, by enumeration of canvases and of what a walk remembers of them.

Nothing here calls a sampler or `unmask.process`: the chance of writing is what the marginals of the process leave.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.tables import every_canvas


@dataclass(frozen=True)
class Walks:
    """Different walks: canvases [S, L], the chance [S, L] that each token had when it was written (0 where none is
    remembered), and how likely each walk is [S]."""

    ids: Tensor
    trust: Tensor
    chance: Tensor


@dataclass(frozen=True)
class Turn:
    """A step from the mask rate `rate_t` to `rate_s` that masks a token again with a chance `remask`, at most `limit`.

    `by_trust`: that chance is shared out among the tokens by how unlikely they were.
    """

    rate_t: float
    rate_s: float
    remask: float = 0.0
    limit: float = 1.0
    by_trust: bool = False


def remasking_law(denoiser: Any, start: Tensor, turns: list[Turn]) -> Tensor:
    """[V^L] the law of finished canvases from `start` [L], whose given tokens stay."""
    walks = _at(start)
    open_ = start == denoiser.config.mask_token_id
    for turn in turns:
        walks = take_turn(denoiser, walks, open_, turn)
    return _law(walks, denoiser.config.vocab_size)


def correcting_law(denoiser: Any, start: Tensor, levels: list[float], calls: int, fraction: float) -> Tensor:
    """[V^L] the law of finished canvases when steps between mask rates and corrections of the lower one take turns."""
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


def take_turn(denoiser: Any, walks: Walks, open_: Tensor, turn: Turn) -> Walks:
    """Walks one step later. What is masked is written with the chance that makes the share of masks `rate_s`, if it was
    `rate_t`: alpha_s = (1 - rho) alpha_t + (1 - alpha_t) write."""
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    x_theta = exact.log_conditionals(denoiser, walks.ids, 1.0 - turn.rate_t).exp()
    write = ((1 - turn.rate_s) - (1 - turn.remask) * (1 - turn.rate_t)) / turn.rate_t
    kept = torch.nn.functional.one_hot(walks.ids, V).double()
    gone = torch.nn.functional.one_hot(torch.tensor(mask), V).double()
    rho = _shared(walks, open_, turn, mask)[..., None]
    masked = (walks.ids == mask)[..., None]
    kernel = torch.where(masked, write * x_theta + (1 - write) * gone, (1 - rho) * kept + rho * gone)
    return _move(walks, torch.where(open_[:, None], kernel, kept), x_theta if turn.by_trust else None)


def _shared(walks: Walks, open_: Tensor, turn: Turn, mask: int) -> Tensor:
    """[S, L] the chance that each token is masked again."""
    if not turn.by_trust:
        return torch.full(walks.ids.shape, turn.remask, dtype=torch.float64)
    written = (walks.ids != mask) & open_
    weight = (-walks.trust).exp() * written
    share = weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-300)
    return (turn.remask * written.sum(dim=1, keepdim=True) * share).clamp_max(turn.limit)


def _at(start: Tensor) -> Walks:
    nothing = torch.zeros(1, len(start), dtype=torch.float64)
    return Walks(start[None], nothing, torch.ones(1, dtype=torch.float64))


def _move(walks: Walks, kernel_SLV: Tensor, x_theta: Tensor | None) -> Walks:
    """Every walk to every canvas that it may become; with `x_theta` [S, L, V] what is written is remembered."""
    _, L, V = kernel_SLV.shape
    canvases = every_canvas(V, L)
    each = torch.stack([kernel_SLV[:, place, token] for place, token in enumerate(canvases.T)])
    likely = walks.chance[:, None] * each.prod(dim=0)
    walk, canvas = likely.nonzero(as_tuple=True)
    ids, trust = canvases[canvas], torch.zeros(len(walk), L, dtype=torch.float64)
    if x_theta is not None:
        fresh = x_theta[walk].gather(2, ids[..., None])[..., 0]
        trust = torch.where(walks.ids[walk] == ids, walks.trust[walk], fresh)
    return _merged(ids, trust, likely[walk, canvas])


def _merged(ids: Tensor, trust: Tensor, chance: Tensor) -> Walks:
    """Walks that differ in nothing, as one."""
    seen, number = torch.cat([ids.double(), trust], dim=1).unique(dim=0, return_inverse=True)
    total = torch.zeros(len(seen), dtype=torch.float64).index_add(0, number, chance)
    return Walks(seen[:, : ids.shape[1]].long(), seen[:, ids.shape[1] :], total)


def _law(walks: Walks, vocab_size: int) -> Tensor:
    length = walks.ids.shape[1]
    code = (walks.ids * vocab_size ** torch.arange(length)).sum(dim=1)
    return torch.zeros(vocab_size**length, dtype=torch.float64).index_add(0, code, walks.chance)
