"""Likelihoods, bounds and Markov chains by enumeration: the reference for objectives and samplers.

Nothing here uses an objective, a sampler or `unmask.process`. Chains and divergences are computed from transition
matrices and Bayes' rule, in float64, for a handful of target positions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.laws.tables import all_canvases
from unmask.models.inference import device_of
from unmask.schedules import Schedule

MAX_OPEN = 8
RATE_NODES = 12
QUADRATURE_NODES = 64
NODES_BETWEEN_BREAKPOINTS = 6
TOKENS_AT_ONCE, LOGITS_AT_ONCE = 1 << 14, 1 << 24
"""The most tokens and logits of one call of a denoiser, so that networks of real checkpoints fit into memory."""


def log_conditionals(denoiser: Any, ids: Tensor, alpha: Tensor | float, mask_logit: bool = False) -> Tensor:
    """[N, L, V] log x_theta in float64 for canvases [N, L] and alpha, a scalar or [N]."""
    alpha = torch.as_tensor(alpha, dtype=torch.float64).expand(ids.shape[0])
    with torch.no_grad():
        rows = denoiser.hidden(ids, alpha=alpha)
        return denoiser.head(rows, mask_logit=mask_logit).double().log_softmax(dim=-1)


# ---- likelihoods ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnyOrder:
    """Uniform-order generation, one position at a time: `nll` [B] is -log likelihood and `bound` [B] the mean nats over
    all orders, which is at least as large (Jensen). `canvases` is the number of canvases that the denoiser sees."""

    nll: Tensor
    bound: Tensor
    canvases: int


def any_order(denoiser: Any, ids: Tensor, target_mask: Tensor) -> AnyOrder:
    """Likelihood and bound of ids [B, L] at the target positions [L] given the others, from the same 2^n canvases.

    For all sets M of masked positions f(M) = mean over i in M of p(x_i | x outside M) f(M - i), f(empty) = 1, and
    h(M) = mean over i in M of h(M - i) - log p(x_i | x outside M), h(empty) = 0. A conditioned denoiser also sees the
    mask rate: with n masks left at mask rate v the next position is revealed at v b with b ~ Beta(n, 1). So f and h are
    functions of v, represented as polynomials through a few nodes.
    """
    sets = _subsets(target_mask)
    rates = _rate_nodes(denoiser)
    p = _target_probabilities(denoiser, ids, sets, rates)
    f = [torch.ones(len(rates), ids.shape[0], dtype=torch.float64)]
    h = [torch.zeros_like(f[0])]
    bit = {position: 1 << k for k, position in enumerate(target_mask.nonzero()[:, 0].tolist())}
    for masked in range(1, len(sets)):
        positions = sets[masked].nonzero()[:, 0].tolist()
        average = _beta_average(rates, len(positions))
        f_next = torch.stack([p[masked, :, :, i] * f[masked ^ bit[i]] for i in positions])
        h_next = torch.stack([h[masked ^ bit[i]] - p[masked, :, :, i].log() for i in positions])
        f.append(average @ f_next.mean(dim=0))
        h.append(average @ h_next.mean(dim=0))
    return AnyOrder(-f[-1][-1].log(), h[-1][-1], p[..., 0].numel())


def left_to_right_nll(denoiser: Any, ids: Tensor, target_mask: Tensor) -> Tensor:
    """[B, L] -log p(x_l | x_<l) of a causal denoiser at the target positions [L] of ids [B, L], prefix by prefix."""
    begin = denoiser.config.bos_token_id
    nll = torch.zeros(ids.shape, dtype=torch.float64)
    for position in target_mask.nonzero()[:, 0].tolist():
        prefix = ids[:, :position]
        if begin is not None:
            prefix = torch.cat([torch.full_like(ids[:, :1], begin), prefix], dim=1)
        if prefix.shape[1]:
            log_p = denoiser.head(denoiser.hidden(prefix)[:, -1]).double().log_softmax(dim=-1)
            nll[:, position] = -log_p.gather(1, ids[:, position, None])[:, 0]
    return nll


# ---- bounds ---------------------------------------------------------------------------------------------------------


def continuous_bound(denoiser: Any, ids: Tensor, target_mask: Tensor) -> Tensor:
    """[B, L] nats of the continuous bound at each position: the integral over u = 1 - alpha of (1/u) E -log x_theta.

    A set of n of the L target positions is masked with probability u^n (1 - u)^(L - n).
    """
    sets = _subsets(target_mask)
    node, weight = gauss_legendre(16)
    nll = -_target_probabilities(denoiser, ids, sets, node).log()
    n, L = sets.sum(dim=1, keepdim=True), target_mask.sum()
    probability = node ** (n - 1).clamp_min(0) * (1.0 - node) ** (L - n) * (n > 0)
    return torch.einsum("su,u,subl->bl", probability, weight, nll.where(sets[:, None, None], 0.0))


def step_bound(
    denoiser: Any, ids: Tensor, target_mask: Tensor, rates: Tensor, mask_logit: bool, carry_over: bool
) -> Tensor:
    """[B, L] nats of the T-step bound: KL of every reverse step (see `grid_rates`) and the reconstruction from z_0 = x,
    which the network rewrites unless there is `carry_over`."""
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    sets = _subsets(target_mask)
    n, L = sets.sum(dim=1), target_mask.sum()
    z = ids.masked_fill(sets[:, None], mask)
    x = F.one_hot(ids, V).double().expand(*z.shape, V)
    total = torch.zeros(ids.shape, dtype=torch.float64)
    for rate_s, rate_t in itertools.pairwise(rates):
        x_theta = log_conditionals(denoiser, z.flatten(0, 1), 1.0 - rate_t, mask_logit=mask_logit).exp()
        p = bayes_posterior(x_theta.view(*z.shape, V), z, rate_s, rate_t, mask)
        q = bayes_posterior(x, z, rate_s, rate_t, mask)
        kl = torch.where(q > 0, q * (q.log() - p.log()), 0.0).sum(dim=-1)
        total += torch.einsum("s,sbl->bl", rate_t**n * (1 - rate_t) ** (L - n), kl * target_mask)
    if not carry_over:
        log_p = log_conditionals(denoiser, ids, 1.0, mask_logit=mask_logit)
        total += -log_p.gather(2, ids[..., None])[..., 0] * target_mask
    return total


# ---- distributions of reverse chains --------------------------------------------------------------------------------


def grid_rates(schedule: Schedule, steps: int) -> Tensor:
    """[T + 1] the mask rates 1 - alpha of a schedule at t = 0, 1/T, ..., 1."""
    return schedule.mask_rate(torch.arange(steps + 1, dtype=torch.float64) / steps)


def step_distribution(denoiser: Any, start: Tensor, rates: Tensor, mask_logit: bool = False) -> Tensor:
    """[V^L] probabilities of z_0 of the T-step reverse chain from the canvas `start` [L]; see `grid_rates`."""
    canvases = all_canvases(denoiser.config.vocab_size, len(start))
    probability = (canvases == start).all(dim=1).double()
    for rate_t, rate_s in itertools.pairwise(rates.flip(0)):
        x_theta = log_conditionals(denoiser, canvases, 1.0 - rate_t, mask_logit=mask_logit).exp()
        reverse = bayes_posterior(x_theta, canvases, rate_s, rate_t, denoiser.config.mask_token_id)
        probability = torch.einsum("z,zs->s", probability, product_over_positions(reverse, canvases))
    return probability


def score_distribution(denoiser: Any, start: Tensor, rates: Tensor) -> Tensor:
    """[V^L] probabilities of z_0 if the logits f are those of SEDD, log s = f + log(alpha/(1 - alpha)) - log(V - 1).

    From t to s a masked token becomes y with probability (alpha_s/alpha_t - 1) s_y. These are normalised if their sum
    exceeds 1, and always in the last step.
    """
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    canvases = all_canvases(V, len(start))
    probability, kept = (canvases == start).all(dim=1).double(), F.one_hot(canvases, V).double()
    for rate_t, rate_s in itertools.pairwise(rates.flip(0)):
        alpha_s, alpha_t = 1.0 - rate_s, 1.0 - rate_t
        f = denoiser.head(denoiser.hidden(canvases, alpha=alpha_t.expand(len(canvases)))).double()
        becomes = (alpha_s - alpha_t) / (1.0 - alpha_t) * f.exp() / (V - 1)
        total = becomes.sum(dim=-1, keepdim=True)
        becomes = becomes / (total if rate_s == 0 else total.clamp_min(1.0))
        becomes[..., mask] = 1.0 - becomes.sum(dim=-1)
        reverse = torch.where((canvases == mask)[..., None], becomes, kept)
        probability = torch.einsum("z,zs->s", probability, product_over_positions(reverse, canvases))
    return probability


def rewritten_distribution(denoiser: Any, probability: Tensor, target_mask: Tensor, mask_logit: bool) -> Tensor:
    """[V^L] probabilities of x if those of z_0 are given and the network rewrites all target positions [L]."""
    V = denoiser.config.vocab_size
    canvases = all_canvases(V, len(target_mask))
    written = log_conditionals(denoiser, canvases, 1.0, mask_logit=mask_logit).exp()
    kernel = torch.where(target_mask[:, None], written, F.one_hot(canvases, V).double())
    return torch.einsum("z,zx->x", probability, product_over_positions(kernel, canvases))


def bayes_posterior(x: Tensor, z_t: Tensor, rate_s: Tensor | float, rate_t: Tensor | float, mask: int) -> Tensor:
    """[..., V] q(z_s | z_t, x) by Bayes' rule with transition matrices, for clean-token probabilities x [..., V].

    If z_t cannot come from x, z_s = z_t.
    """
    V = x.shape[-1]
    marginal = x @ _transition_matrix(1.0 - rate_s, V, mask)
    keep = (1.0 - rate_t) / (1.0 - rate_s) if rate_s < 1 else 0.0
    joint = marginal * _transition_matrix(keep, V, mask).T[z_t]
    evidence = joint.sum(dim=-1, keepdim=True)
    return torch.where(evidence > 0, joint / evidence, F.one_hot(z_t, V).to(x.dtype))


def _transition_matrix(keep: Tensor | float, vocab_size: int, mask: int) -> Tensor:
    """[V, V] keeps a token with probability `keep` and masks it otherwise."""
    keep = torch.as_tensor(keep, dtype=torch.float64)
    to_mask = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    to_mask[:, mask] = 1.0
    return keep * torch.eye(vocab_size, dtype=torch.float64) + (1.0 - keep) * to_mask


def product_over_positions(p_ZLV: Tensor, canvases_XL: Tensor) -> Tensor:
    """[Z, X] the probability of every canvas if positions are independent with probabilities [Z, L, V]."""
    return torch.stack([p_ZLV[:, position, token] for position, token in enumerate(canvases_XL.T)]).prod(dim=0)


def outcomes(start: Tensor, vocab_size: int, mask: int) -> Tensor:
    """[K, L] every finished canvas that agrees with the given tokens of `start` [L]."""
    canvases = all_canvases(vocab_size, start.shape[0])
    agrees = ((canvases == start) | (start == mask)).all(dim=1) & (canvases != mask).all(dim=1)
    return canvases[agrees]


# ---- quadrature -----------------------------------------------------------------------------------------------------


def gauss_legendre(nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights [K] of Gauss-Legendre quadrature on (0, 1), in float64."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy((node + 1) / 2), torch.from_numpy(weight / 2)


def time_quadrature(breakpoints: tuple[float, ...] = ()) -> tuple[Tensor, Tensor]:
    """[K] nodes and weights of a quadrature over t in (0, 1) for functions that are smooth between breakpoints.

    It is Gauss-Legendre in sqrt(t), which suits schedules with a steep start.
    """
    node, weight = gauss_legendre(NODES_BETWEEN_BREAKPOINTS if breakpoints else QUADRATURE_NODES)
    ends = torch.tensor((0.0, *breakpoints, 1.0), dtype=torch.float64).sqrt()
    root = ends[:-1, None] + ends.diff()[:, None] * node
    return root.square().flatten(), (2 * root * ends.diff()[:, None] * weight).flatten()


# ---- enumeration of masks -------------------------------------------------------------------------------------------


def _subsets(target_mask: Tensor) -> Tensor:
    """[2^n, L] every set of target positions; bit k of the index is set if it contains the k-th one."""
    positions = target_mask.nonzero()[:, 0]
    if len(positions) > MAX_OPEN:
        raise ValueError(f"can enumerate at most {MAX_OPEN} target positions, got {len(positions)}")
    sets = torch.zeros(1 << len(positions), len(target_mask), dtype=torch.bool)
    sets[:, positions] = (torch.arange(len(sets))[:, None] >> torch.arange(len(positions)) & 1).bool()
    return sets


def _target_probabilities(denoiser: Any, ids: Tensor, sets: Tensor, rates: Tensor) -> Tensor:
    """[S, K, B, L] x_theta(x) of ids [B, L] with each set [S, L] masked, at each mask rate [K]; 1 at visible positions.

    Canvases go through the denoiser in chunks, and only masked rows through its head.
    """
    S, K, (B, L) = len(sets), len(rates), ids.shape
    masked = sets[:, None, None].expand(S, K, B, L).reshape(-1, L)
    alpha = (1.0 - rates)[None, :, None].expand(S, K, B).reshape(-1)
    text = ids.expand(S, K, B, L).reshape(-1, L)
    most = int(sets.sum(dim=1).max())
    size = min(TOKENS_AT_ONCE // L, LOGITS_AT_ONCE // (max(most, 1) * denoiser.config.vocab_size)) or 1

    @torch.no_grad()
    def probabilities(text: Tensor, masked: Tensor, alpha: Tensor) -> Tensor:
        text, masked, alpha = (part.to(device_of(denoiser)) for part in (text, masked, alpha))
        rows = denoiser.hidden(text.masked_fill(masked, denoiser.config.mask_token_id), alpha=alpha)
        log_p = denoiser.head(rows[masked]).double().log_softmax(dim=-1)
        p = log_p.gather(1, text[masked][:, None])[:, 0].exp()
        return torch.ones(text.shape, dtype=torch.float64).masked_scatter(masked.cpu(), p.cpu())

    chunks = zip(text.split(size), masked.split(size), alpha.split(size), strict=True)
    return torch.cat([probabilities(*chunk) for chunk in chunks]).view(S, K, B, L)


def _rate_nodes(denoiser: Any) -> Tensor:
    """[K] the nodes for functions of the mask rate, the last of which is 1; one for an unconditioned denoiser."""
    if not denoiser.config.conditioned:
        return torch.ones(1, dtype=torch.float64)
    return (1.0 - torch.cos(torch.pi * torch.arange(RATE_NODES, dtype=torch.float64) / (RATE_NODES - 1))) / 2


def _beta_average(rates: Tensor, masks: int) -> Tensor:
    """[K, K] maps g at the nodes v to E g(v b), b ~ Beta(masks, 1): E b^m = masks / (masks + m) for each power v^m."""
    power = torch.arange(len(rates), dtype=torch.float64)
    values = rates[:, None] ** power
    return values * (masks / (masks + power)) @ torch.linalg.inv(values)
