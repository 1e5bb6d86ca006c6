"""Likelihoods, bounds and laws of chains by enumeration: what objectives and samplers are compared with.

Nothing here calls an objective, a sampler or `unmask.process`. Chains and divergences are made from transition matrices
and Bayes' rule, in float64. Only a handful of positions may be open.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.laws.tables import all_canvases
from unmask.models.inference import device_of

MAX_OPEN = 8
CLOCK_NODES = 12
QUADRATURE_NODES = 64
TOKENS_AT_ONCE, LOGITS_AT_ONCE = 1 << 14, 1 << 24
"""What a denoiser is shown in one call, so that the networks of real checkpoints fit into memory too."""
NODES_BETWEEN_BENDS = 6


def log_conditionals(denoiser: Any, ids: Tensor, alpha: Tensor | float, mask_logit: bool = False) -> Tensor:
    """[N, L, V] log x_theta in float64 for canvases [N, L] and alpha, one for all or [N]."""
    alpha = torch.as_tensor(alpha, dtype=torch.float64).expand(ids.shape[0])
    with torch.no_grad():
        rows = denoiser.hidden(ids, alpha=alpha)
        return denoiser.head(rows, mask_logit=mask_logit).double().log_softmax(dim=-1)


@dataclass(frozen=True)
class AnyOrder:
    """What generation in uniform order, one position at a time, makes of texts: `nll` [B] is -log likelihood, `bound`
    [B] the mean over orders of the nats, which Jensen puts above it; `canvases`: how many the denoiser was shown."""

    nll: Tensor
    bound: Tensor
    canvases: int


def any_order(denoiser: Any, ids: Tensor, open_: Tensor) -> AnyOrder:
    """Likelihood and bound of ids [B, L] given the positions that are not open [L], from the same 2^n canvases.

    Over all sets M of masked positions f(M) = mean over i in M of p(x_i | x outside M) f(M - i), f(empty) = 1, and
    h(M) = mean over i in M of h(M - i) - log p(x_i | x outside M), h(empty) = 0. A conditioned denoiser also sees the
    clock: with n masks left at mask rate v the next position is revealed at v b with b ~ Beta(n, 1), so f and h are
    functions of v, held as polynomials through a few nodes.
    """
    sets = _subsets(open_)
    clock = _clock(denoiser)
    chance = _chances(denoiser, ids, sets, clock)
    f = [torch.ones(len(clock), ids.shape[0], dtype=torch.float64)]
    h = [torch.zeros_like(f[0])]
    bit = {position: 1 << k for k, position in enumerate(open_.nonzero()[:, 0].tolist())}
    for masked in range(1, len(sets)):
        members = sets[masked].nonzero()[:, 0].tolist()
        p = [chance[masked, :, :, i] for i in members]
        rest = [masked ^ bit[i] for i in members]
        later = _later(clock, len(members))
        f.append(later @ torch.stack([p_i * f[r] for p_i, r in zip(p, rest, strict=True)]).mean(dim=0))
        h.append(later @ torch.stack([h[r] - p_i.log() for p_i, r in zip(p, rest, strict=True)]).mean(dim=0))
    return AnyOrder(-f[-1][-1].log(), h[-1][-1], chance[..., 0].numel())


def any_order_nll(denoiser: Any, ids: Tensor, open_: Tensor) -> Tensor:
    """[B] -log likelihood of ids [B, L] given the positions that are not open [L], in uniform order."""
    return any_order(denoiser, ids, open_).nll


def left_to_right_nll(denoiser: Any, ids: Tensor, open_: Tensor) -> Tensor:
    """[B, L] -log p(x_l | x_<l) of a causal denoiser at the open positions [L] of ids [B, L], one prefix at a time."""
    begin = denoiser.config.bos_token_id
    out = torch.zeros(ids.shape, dtype=torch.float64)
    for position in open_.nonzero()[:, 0].tolist():
        prefix = ids[:, :position]
        if begin is not None:
            prefix = torch.cat([torch.full_like(ids[:, :1], begin), prefix], dim=1)
        if prefix.shape[1]:
            log_p = denoiser.head(denoiser.hidden(prefix)[:, -1]).double().log_softmax(dim=-1)
            out[:, position] = -log_p.gather(1, ids[:, position, None])[:, 0]
    return out


def continuous_bound(denoiser: Any, ids: Tensor, open_: Tensor) -> Tensor:
    """[B, L] nats of the continuous bound at each position: the integral over u = 1 - alpha of (1/u) E -log x_theta.

    A set M of n of the L open positions is masked with probability u^n (1 - u)^(L - n).
    """
    sets = _subsets(open_)
    node, weight = gauss_legendre(16)
    nll = -_chances(denoiser, ids, sets, node).log()
    n, L = sets.sum(dim=1, keepdim=True), open_.sum()
    chance = node ** (n - 1).clamp_min(0) * (1.0 - node) ** (L - n) * (n > 0)
    return torch.einsum("su,u,subl->bl", chance, weight, nll.where(sets[:, None, None], 0.0))


def step_bound(denoiser: Any, ids: Tensor, open_: Tensor, rates: Tensor, mask_logit: bool, carry_over: bool) -> Tensor:
    """[B, L] nats of the bound of the T-step process: KL of every reverse step and the reconstruction from z_0 = x.

    `rates` [T + 1] are 1 - alpha at t = 0, 1/T, ..., 1. Without `carry_over` the network rewrites z_0.
    """
    sets = _subsets(open_)
    n, L = sets.sum(dim=1), open_.sum()
    total = torch.zeros(ids.shape, dtype=torch.float64)
    for rate_s, rate_t in itertools.pairwise(rates):
        divergence = _step_divergence(denoiser, ids, sets, rate_s, rate_t, mask_logit)
        total += torch.einsum("s,sbl->bl", rate_t**n * (1 - rate_t) ** (L - n), divergence * open_)
    if not carry_over:
        log_p = log_conditionals(denoiser, ids, 1.0, mask_logit=mask_logit)
        total += -log_p.gather(2, ids[..., None])[..., 0] * open_
    return total


def _step_divergence(
    denoiser: Any, ids: Tensor, sets: Tensor, rate_s: Tensor, rate_t: Tensor, mask_logit: bool
) -> Tensor:
    """[S, B, L] KL(q(z_s | z_t, x) || p_theta(z_s | z_t)) of every position, for z_t with each set [S, L] masked."""
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    z = ids.masked_fill(sets[:, None], mask)
    x_theta = log_conditionals(denoiser, z.flatten(0, 1), 1.0 - rate_t, mask_logit=mask_logit).exp()
    model = bayes(x_theta.view(*z.shape, V), z, rate_s, rate_t, mask)
    truth = bayes(torch.nn.functional.one_hot(ids, V).double().expand(*z.shape, V), z, rate_s, rate_t, mask)
    return torch.where(truth > 0, truth * (truth.log() - model.log()), 0.0).sum(dim=-1)


def step_law(denoiser: Any, start: Tensor, rates: Tensor, mask_logit: bool = False) -> Tensor:
    """[V^L] the law of z_0 of the T-step reverse chain from the canvas `start` [L]; all canvases are its states."""
    V, L = denoiser.config.vocab_size, start.shape[0]
    canvases = all_canvases(V, L)
    law = (canvases == start).all(dim=1).double()
    for rate_s, rate_t in reversed(list(itertools.pairwise(rates))):
        x_theta = log_conditionals(denoiser, canvases, 1.0 - rate_t, mask_logit=mask_logit).exp()
        reverse = bayes(x_theta, canvases, rate_s, rate_t, denoiser.config.mask_token_id)
        law = torch.einsum("z,zs->s", law, _jointly(reverse, canvases))
    return law


def score_law(denoiser: Any, start: Tensor, rates: Tensor) -> Tensor:
    """[V^L] the law of z_0 when the logits f of a denoiser are SEDD's, log s = f + log(alpha/(1 - alpha)) - log(V - 1).

    From t to s a masked token becomes y with (alpha_s/alpha_t - 1) s_y, as far as chances go; in the last step it does
    become something.
    """
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    canvases = all_canvases(V, len(start))
    law, kept = (canvases == start).all(dim=1).double(), torch.nn.functional.one_hot(canvases, V).double()
    for rate_s, rate_t in reversed(list(itertools.pairwise(rates))):
        alpha_s, alpha_t = 1.0 - rate_s, 1.0 - rate_t
        f = denoiser.head(denoiser.hidden(canvases, alpha=alpha_t.expand(len(canvases)))).double()
        becomes = (alpha_s - alpha_t) / (1.0 - alpha_t) * f.exp() / (V - 1)
        total = becomes.sum(dim=-1, keepdim=True)
        becomes = becomes / (total if rate_s == 0 else total.clamp_min(1.0))
        becomes[..., mask] = 1.0 - becomes.sum(dim=-1)
        reverse = torch.where((canvases == mask)[..., None], becomes, kept)
        law = torch.einsum("z,zs->s", law, _jointly(reverse, canvases))
    return law


def rewritten(denoiser: Any, law: Tensor, open_: Tensor, mask_logit: bool) -> Tensor:
    """[V^L] the law of x when z_0 has the law [V^L] and the network writes every open position [L] anew from z_0."""
    V = denoiser.config.vocab_size
    canvases = all_canvases(V, len(open_))
    written = log_conditionals(denoiser, canvases, 1.0, mask_logit=mask_logit).exp()
    kept = torch.nn.functional.one_hot(canvases, V).double()
    return torch.einsum("z,zx->x", law, _jointly(torch.where(open_[:, None], written, kept), canvases))


def bayes(x: Tensor, z_t: Tensor, rate_s: Tensor | float, rate_t: Tensor | float, mask: int) -> Tensor:
    """[..., V] q(z_s | z_t, x) by Bayes' rule with the transition matrices, for a law x [..., V] of the clean token.

    Where z_t cannot have come from x, nothing is known and z_t is kept.
    """
    V = x.shape[-1]
    marginal = x @ _transition(1.0 - rate_s, V, mask)
    keep = (1.0 - rate_t) / (1.0 - rate_s) if rate_s < 1 else 0.0
    joint = marginal * _transition(keep, V, mask).T[z_t]
    kept = torch.nn.functional.one_hot(z_t, V).to(x.dtype)
    evidence = joint.sum(dim=-1, keepdim=True)
    return torch.where(evidence > 0, joint / evidence, kept)


def gauss_legendre(nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights [K] of Gauss-Legendre quadrature on (0, 1), in float64."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy((node + 1) / 2), torch.from_numpy(weight / 2)


def time_quadrature(bends: tuple[float, ...] = ()) -> tuple[Tensor, Tensor]:
    """[K] times and weights of a quadrature over t in (0, 1) for what is smooth between the times `bends`.

    It is one in sqrt(t), gentle to schedules that start steeply.
    """
    node, weight = gauss_legendre(NODES_BETWEEN_BENDS if bends else QUADRATURE_NODES)
    ends = torch.tensor((0.0, *bends, 1.0), dtype=torch.float64).sqrt()
    root = ends[:-1, None] + ends.diff()[:, None] * node
    return root.square().flatten(), (2 * root * ends.diff()[:, None] * weight).flatten()


def outcomes(start: Tensor, vocab_size: int, mask: int) -> Tensor:
    """[K, L] every finished canvas that agrees with the given tokens of `start` [L]."""
    canvases = all_canvases(vocab_size, start.shape[0])
    agrees = ((canvases == start) | (start == mask)).all(dim=1) & (canvases != mask).all(dim=1)
    return canvases[agrees]


def _transition(keep: Tensor | float, vocab_size: int, mask: int) -> Tensor:
    """[V, V] the matrix that keeps a token with probability `keep` and makes it the mask otherwise."""
    keep = torch.as_tensor(keep, dtype=torch.float64)
    to_mask = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    to_mask[:, mask] = 1.0
    return keep * torch.eye(vocab_size, dtype=torch.float64) + (1.0 - keep) * to_mask


def _jointly(each_ZLV: Tensor, canvases_XL: Tensor) -> Tensor:
    """[Z, X] the chance of every canvas when positions are independent with the laws [Z, L, V]."""
    picked = [each_ZLV[:, position, token] for position, token in enumerate(canvases_XL.T)]
    return torch.stack(picked).prod(dim=0)


def _subsets(open_: Tensor) -> Tensor:
    """[2^n, L] every set of open positions; set number sum_k 2^k has the k-th open position in it."""
    positions = open_.nonzero()[:, 0]
    if len(positions) > MAX_OPEN:
        raise ValueError(f"{len(positions)} open positions are too many to enumerate; leave at most {MAX_OPEN} open")
    sets = torch.zeros(1 << len(positions), len(open_), dtype=torch.bool)
    sets[:, positions] = (torch.arange(len(sets))[:, None] >> torch.arange(len(positions)) & 1).bool()
    return sets


def _chances(denoiser: Any, ids: Tensor, sets: Tensor, rates: Tensor) -> Tensor:
    """[S, K, B, L] x_theta(x) of ids [B, L] where each set [S, L] masks them, at each mask rate [K]; 1 elsewhere.

    Canvases go through the denoiser a chunk at a time, and only masked rows meet the vocabulary.
    """
    S, K, (B, L) = len(sets), len(rates), ids.shape
    masked = sets[:, None, None].expand(S, K, B, L).reshape(-1, L)
    alpha = (1.0 - rates)[None, :, None].expand(S, K, B).reshape(-1)
    text = ids.expand(S, K, B, L).reshape(-1, L)
    most = int(sets.sum(dim=1).max())
    size = min(TOKENS_AT_ONCE // L, LOGITS_AT_ONCE // (max(most, 1) * denoiser.config.vocab_size)) or 1
    parts = zip(text.split(size), masked.split(size), alpha.split(size), strict=True)
    return torch.cat([_chances_of(denoiser, *part) for part in parts]).view(S, K, B, L)


def _chances_of(denoiser: Any, ids: Tensor, masked: Tensor, alpha: Tensor) -> Tensor:
    """[N, L] x_theta(x) of ids [N, L] at the masked positions [N, L], 1 elsewhere, in float64."""
    ids, masked, alpha = (part.to(device_of(denoiser)) for part in (ids, masked, alpha))
    z = ids.masked_fill(masked, denoiser.config.mask_token_id)
    with torch.no_grad():
        rows = denoiser.hidden(z, alpha=alpha)
        log_p = denoiser.head(rows[masked]).double().log_softmax(dim=-1)
    chance = log_p.gather(1, ids[masked][:, None])[:, 0].exp()
    return torch.ones(ids.shape, dtype=torch.float64).masked_scatter(masked.cpu(), chance.cpu())


def _clock(denoiser: Any) -> Tensor:
    """[K] the mask rates at which functions of the clock are held, 1 the last; one is enough if nobody looks."""
    if not denoiser.config.conditioned:
        return torch.ones(1, dtype=torch.float64)
    return (1.0 - torch.cos(torch.pi * torch.arange(CLOCK_NODES, dtype=torch.float64) / (CLOCK_NODES - 1))) / 2


def _later(clock: Tensor, masks: int) -> Tensor:
    """[K, K] takes g at the nodes v to E g(v b), b ~ Beta(masks, 1): E b^m = masks / (masks + m) on every power v^m."""
    power = torch.arange(len(clock), dtype=torch.float64)
    values = clock[:, None] ** power
    return values * (masks / (masks + power)) @ torch.linalg.inv(values)
