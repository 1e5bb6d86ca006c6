"""The laws of networks: what objectives and samplers rely on, for every registered network, built small.

Parameters are drawn at random first, since a fresh network is silent: its output layer starts at zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.base import Check, describe, law, members
from unmask.laws.objectives import average
from unmask.models import cross_entropy as losses
from unmask.objectives.base import LossTerms, Noise, Objective
from unmask.objectives.subs import MaskCount
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.samplers.base import Canvas, sample
from unmask.schedules import LogLinear

V, LENGTH, MASK = 11, 8, 4
CLOSE = 1e-5


def network(spec: Any) -> Any:
    """A small network in eval mode whose parameters are all random."""
    net = spec.build(V, MASK, LENGTH + 1).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return net


def text(rows: int, seed: int = 0) -> Tensor:
    """[rows, LENGTH] random tokens without masks."""
    u = uniform(seed, Purpose.TOKEN, sample=torch.arange(rows)[:, None], position=torch.arange(LENGTH))
    ids = (u * (V - 1)).long()
    return ids + (ids >= MASK)


@law("model")
def mask_token_is_closed(spec: Any) -> Iterator[Check]:
    """Without `mask_logit` the mask token has probability exactly 0, the other logits are those with it, and the rows
    are not written to."""
    net = network(spec)
    with torch.no_grad():
        rows = net.hidden(text(2))
        before = rows.clone()
        closed, free = net.head(rows), net.head(rows, mask_logit=True)
    others = torch.arange(V) != MASK
    yield Check(float(closed.softmax(dim=-1)[..., MASK].abs().max()), 0.0, "probability of the mask token")
    yield Check(float((closed - free)[..., others].abs().max()), 0.0, "change of the other logits")
    yield Check(float((~free.isfinite()).sum()), 0, "logits that are not finite with the mask token among them")
    yield Check(float((rows != before).sum()), 0, "rows changed by the head")


@law("model")
def company_and_pads_do_not_matter(spec: Any) -> Iterator[Check]:
    """A sequence has the same rows alone, in a batch, and with pads behind it whatever stands there."""
    net = network(spec)
    ids, length = text(3), LENGTH - 3
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[1, length:] = False
    with torch.no_grad():
        together = net.head(net.hidden(ids, attention_mask=attention), mask_logit=True)
        alone = net.head(net.hidden(ids[1:2, :length]), mask_logit=True)
        first = net.head(net.hidden(ids[:1]), mask_logit=True)
    yield Check(float((together[1, :length] - alone[0]).abs().max()), CLOSE, "logits of a padded sequence")
    yield Check(float((together[0] - first[0]).abs().max()), CLOSE, "logits of a sequence in a batch")


@law("model", when=lambda spec: not spec.causal)
def some_rows_are_rows_of_all(spec: Any) -> Iterator[Check]:
    """Asked about some positions alone, a network gives there what it gives when asked about all, pads or none."""
    net = network(spec)
    ids, positions = text(3), torch.tensor([[0, 5], [3, 3], [7, 1]])
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[1, -2:] = False
    alpha = torch.tensor([0.1, 0.5, 0.9])
    for pads in (None, attention):
        with torch.no_grad():
            some = net.hidden_at(ids, positions, alpha=alpha, attention_mask=pads)
            rows = net.hidden(ids, alpha=alpha, attention_mask=pads)[torch.arange(3)[:, None], positions]
        yield Check(float((some - rows).abs().max()), CLOSE, "rows at some positions alone")


@law("model")
def forward_is_hidden_then_head(spec: Any) -> Iterator[Check]:
    """Called as Hugging Face calls it, a network gives the logits of its fast path."""
    net = network(spec)
    ids = text(2)
    with torch.no_grad():
        difference = (net(ids).logits.softmax(dim=-1) - net.head(net.hidden(ids)).softmax(dim=-1)).abs().max()
    yield Check(float(difference), 1e-6, "probabilities of forward against hidden and head")


@law("model")
def selected_rows_are_dense_rows(spec: Any) -> Iterator[Check]:
    """Loss and gradients from selected rows, in chunks or not, equal those from logits at all positions (law 10)."""
    net = network(spec)
    attention = torch.ones(4, LENGTH, dtype=torch.bool)
    attention[1, -2:] = False
    batch = Batch.of(text(4), attention, torch.arange(LENGTH).expand(4, -1) < 2)
    noise = Noise(torch.tensor([0.2, 0.5, 0.7, 1.0]), uniform(1, Purpose.MASK, sample=torch.arange(32)).view(4, LENGTH))
    for objective in members("objective"):
        if objective.causal == spec.causal and not objective.trains_planner:
            dense = _with_gradients(objective, Dense(net), net, batch, noise)
            rows = _with_gradients(objective, net, net, batch, noise)
            with mock.patch.object(losses, "LOGITS_PER_REDUCTION", 3 * V):
                chunks = _with_gradients(objective, net, net, batch, noise)
            yield Check(_apart(rows, dense), CLOSE, f"{describe(objective)}: rows against dense, relative")
            yield Check(_apart(chunks, dense), CLOSE, f"{describe(objective)}: rows in chunks against dense, relative")


class Dense:
    """A network that computes logits at all positions first, [B, L, V], and only then lets rows be chosen."""

    def __init__(self, net: Any) -> None:
        self.net = net
        self.config = net.config

    def hidden(self, *args: Any, **kwargs: Any) -> Tensor:
        """Logits [B, L, V], the mask token's included."""
        return self.net.head(self.net.hidden(*args, **kwargs), mask_logit=True)

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """The rows themselves; the mask token's logit is minus infinity unless ``mask_logit``."""
        return rows if mask_logit else rows.masked_fill(torch.arange(V) == self.config.mask_token_id, -torch.inf)


def _with_gradients(objective: Objective, denoiser: Any, net: Any, batch: Batch, noise: Noise) -> list[Tensor]:
    """The bound [B, L] of an objective and the gradients of all parameters from what it trains on."""
    terms: LossTerms = objective.loss(denoiser, batch, LogLinear(), noise)
    gradients = torch.autograd.grad(terms.loss, list(net.parameters()), allow_unused=True, materialize_grads=True)
    return [terms.nelbo.detach(), *gradients]


def _apart(some: list[Tensor], others: list[Tensor]) -> float:
    """The largest difference between tensors, relative to the largest entry of each."""
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-3)) for a, b in zip(some, others, strict=True))


@law("model", when=lambda spec: not spec.causal)
def alpha_is_seen_by_those_who_ask(spec: Any) -> Iterator[Check]:
    """A conditioned network depends on alpha, any other does not."""
    net = network(spec)
    with torch.no_grad():
        low, high = (net.hidden(text(2), alpha=torch.full((2,), alpha)) for alpha in (0.1, 0.9))
    moved = float((low - high).abs().max())
    if net.config.conditioned:
        yield Check(-moved, -1e-3, "minus what alpha moves in a conditioned network")
    else:
        yield Check(moved, 0.0, "what alpha moves in a network that is not conditioned")


@law("model", when=lambda spec: not spec.causal)
def bound_of_a_network_is_above_its_likelihood(spec: Any) -> Iterator[Check]:
    """The bound of a network on 4 open positions, averaged exactly, is not below -log p by the subset recursion, and is
    the enumerated bound (law 1)."""
    net = network(spec)
    ids, open_ = text(1)[0], torch.arange(LENGTH) >= LENGTH - 4
    nats = float(average(MaskCount(), net, LogLinear(), ids, open_).sum())
    nll = float(exact.any_order_nll(net, ids[None], open_))
    yield Check(nll - nats, 1e-4, "nats by which the bound is below -log p")
    should = float(exact.continuous_bound(net, ids[None], open_).sum())
    yield Check(abs(nats - should), 1e-4, "nats between the bound and its enumeration")


@law("model", when=lambda spec: spec.causal)
def later_tokens_are_not_seen(spec: Any) -> Iterator[Check]:
    """A row of a causal network does not move with the tokens after it, and a cache changes nothing."""
    net = network(spec)
    ids = text(2)
    other = torch.cat([ids[:, :4], text(2, seed=1)[:, 4:]], dim=1)
    with torch.no_grad():
        rows = net.hidden(ids)
        yield Check(float((rows - net.hidden(other))[:, :4].abs().max()), CLOSE, "rows that see later tokens")
        cache = net.new_cache()
        parts = [net.hidden(part, past_key_values=cache) for part in ids.split([3, 1, 1, LENGTH - 5], dim=1)]
    yield Check(float((torch.cat(parts, dim=1) - rows).abs().max()), CLOSE, "rows with a cache")


@law("model")
def samples_do_not_depend_on_company(spec: Any) -> Iterator[Check]:
    """With test seeds, sequences come out of a network with the same tokens alone and in a batch."""
    net = network(spec)
    canvas = Canvas.of(text(4).masked_fill(torch.arange(LENGTH) >= 3, MASK), MASK, seed=5)
    samplers = (s for s in members("sampler") if s.causal == spec.causal and not s.needs_planner)
    for sampler in {type(s): s for s in samplers}.values():
        together = sample(sampler, net, canvas).ids
        for b in range(4):
            lone = Canvas(canvas.ids[b : b + 1], canvas.attention_mask[b : b + 1], canvas.seeds[b : b + 1], MASK)
            differ = (sample(sampler, net, lone).ids[0] != together[b]).sum()
            yield Check(float(differ), 0, f"tokens of {describe(sampler)} that differ in company")
