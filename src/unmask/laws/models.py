"""The laws of networks: the properties that objectives and samplers rely on, checked at a small size.

All parameters are random, since the output layer of a fresh network is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.base import Check, describe, law, max_abs, members
from unmask.laws.objectives import expected_nelbo
from unmask.laws.tables import LogitDenoiser
from unmask.models import cross_entropy
from unmask.objectives.base import Noise, Objective
from unmask.objectives.subs import MaskCount
from unmask.process import Batch
from unmask.random import Purpose, uniform
from unmask.samplers.base import Canvas, sample
from unmask.schedules import LogLinear

V, LENGTH, MASK = 11, 8, 4
TOLERANCE = 1e-5


def random_network(spec: Any) -> Any:
    """A small network in eval mode with random parameters, the same in every call."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        net = spec.build(V, MASK, LENGTH + 1).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return net


def random_text(rows: int, seed: int = 0) -> Tensor:
    """[rows, LENGTH] random tokens without masks."""
    u = uniform(seed, Purpose.TOKEN, sample=torch.arange(rows)[:, None], position=torch.arange(LENGTH))
    ids = (u * (V - 1)).long()
    return ids + (ids >= MASK)


@law("model")
def mask_token_has_probability_zero(spec: Any) -> Iterator[Check]:
    """Without `mask_logit` the mask token has probability exactly 0, the other logits are the same as with it, and the
    head does not write to its input."""
    net = random_network(spec)
    with torch.no_grad():
        rows = net.hidden(random_text(2))
        before = rows.clone()
        without, with_mask = net.head(rows), net.head(rows, mask_logit=True)
    others = torch.arange(V) != MASK
    yield Check(max_abs(without.softmax(dim=-1)[..., MASK]), 0.0, "probability of the mask token")
    yield Check(max_abs((without - with_mask)[..., others]), 0.0, "change of the other logits")
    yield Check(float((~with_mask.isfinite()).sum()), 0, "logits that are not finite with the mask token included")
    yield Check(float((rows != before).sum()), 0, "rows changed by the head")


@law("model")
def logits_do_not_depend_on_batch_composition_or_padding(spec: Any) -> Iterator[Check]:
    """A sequence has the same logits alone, in a batch, and with any padding."""
    net = random_network(spec)
    ids, length = random_text(3), LENGTH - 3
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[1, length:] = False
    with torch.no_grad():
        together = net.head(net.hidden(ids, attention_mask=attention), mask_logit=True)
        alone = net.head(net.hidden(ids[1:2, :length]), mask_logit=True)
        first = net.head(net.hidden(ids[:1]), mask_logit=True)
    yield Check(max_abs(together[1, :length] - alone[0]), TOLERANCE, "logits of a padded sequence")
    yield Check(max_abs(together[0] - first[0]), TOLERANCE, "logits of a sequence in a batch")


@law("model", when=lambda spec: not spec.causal)
def hidden_at_equals_hidden_at_those_positions(spec: Any) -> Iterator[Check]:
    """`hidden_at` returns the rows of `hidden` at the given positions, with and without padding."""
    net = random_network(spec)
    ids, positions = random_text(3), torch.tensor([[0, 5], [3, 3], [7, 1]])
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[1, -2:] = False
    alpha = torch.tensor([0.1, 0.5, 0.9])
    for mask in (None, attention):
        with torch.no_grad():
            some = net.hidden_at(ids, positions, alpha=alpha, attention_mask=mask)
            rows = net.hidden(ids, alpha=alpha, attention_mask=mask)[torch.arange(3)[:, None], positions]
        yield Check(max_abs(some - rows), TOLERANCE, "rows of hidden_at against hidden")


@law("model")
def forward_equals_hidden_then_head(spec: Any) -> Iterator[Check]:
    """`forward`, the Hugging Face interface, returns the logits of `hidden` and `head`."""
    net = random_network(spec)
    ids = random_text(2)
    with torch.no_grad():
        difference = net(ids).logits.softmax(dim=-1) - net.head(net.hidden(ids)).softmax(dim=-1)
    yield Check(max_abs(difference), 1e-6, "probabilities of forward against hidden and head")


@law("model")
def masked_rows_loss_equals_the_dense_loss(spec: Any) -> Iterator[Check]:
    """Loss and gradients from selected rows, in chunks or not, equal those from logits at all positions (law 10)."""
    net = random_network(spec)
    attention = torch.ones(4, LENGTH, dtype=torch.bool)
    attention[1, -2:] = False
    batch = Batch.of(random_text(4), attention, torch.arange(LENGTH).expand(4, -1) < 2)
    noise = Noise(torch.tensor([0.2, 0.5, 0.7, 1.0]), uniform(1, Purpose.MASK, sample=torch.arange(32)).view(4, LENGTH))

    def nelbo_and_gradients(objective: Objective, denoiser: Any) -> list[Tensor]:
        terms = objective.loss(denoiser, batch, LogLinear(), noise)
        parameters = list(net.parameters())
        gradients = torch.autograd.grad(terms.loss, parameters, allow_unused=True, materialize_grads=True)
        return [terms.nelbo.detach(), *gradients]

    for objective in members("objective"):
        if objective.causal == spec.causal and not objective.trains_planner:
            dense = nelbo_and_gradients(objective, DenseDenoiser(net))
            rows = nelbo_and_gradients(objective, net)
            with mock.patch.object(cross_entropy, "LOGITS_PER_REDUCTION", 3 * V):
                chunks = nelbo_and_gradients(objective, net)
            for name, found in (("rows", rows), ("rows in chunks", chunks)):
                # the bias of the keys has gradient 0 up to rounding, since softmax does not depend on it
                smallest = max(1e-3, 0.01 * max(map(max_abs, dense)))
                pairs = zip(found, dense, strict=True)
                difference = max(max_abs(a - b) / max(max_abs(b), smallest) for a, b in pairs)
                yield Check(difference, TOLERANCE, f"{describe(objective)}: {name} against dense, relative")


class DenseDenoiser(LogitDenoiser):
    """A network that computes the logits [B, L, V] at all positions before rows are selected."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.config = net, net.config

    def hidden(self, *args: Any, **kwargs: Any) -> Tensor:
        """Logits [B, L, V], including that of the mask token."""
        return self.net.head(self.net.hidden(*args, **kwargs), mask_logit=True)


@law("model", when=lambda spec: not spec.causal)
def only_conditioned_networks_depend_on_alpha(spec: Any) -> Iterator[Check]:
    """A conditioned network depends on alpha, any other does not."""
    net = random_network(spec)
    with torch.no_grad():
        low, high = (net.hidden(random_text(2), alpha=torch.full((2,), alpha)) for alpha in (0.1, 0.9))
    difference = max_abs(low - high)
    if net.config.conditioned:
        yield Check(-difference, -1e-3, "minus the effect of alpha in a conditioned network")
    else:
        yield Check(difference, 0.0, "effect of alpha in an unconditioned network")


@law("model", when=lambda spec: not spec.causal)
def bound_of_a_network_is_not_below_its_negative_log_likelihood(spec: Any) -> Iterator[Check]:
    """The exact expectation of the bound on 4 target positions is not below -log p by the subset recursion, and equals
    the enumerated bound (law 1)."""
    net = random_network(spec)
    ids, targets = random_text(1)[0], torch.arange(LENGTH) >= LENGTH - 4
    nats = float(expected_nelbo(MaskCount(), net, LogLinear(), ids, targets).sum())
    nll = float(exact.any_order(net, ids[None], targets).nll)
    yield Check(nll - nats, 1e-4, "nats by which the bound is below -log p")
    expected = float(exact.continuous_bound(net, ids[None], targets).sum())
    yield Check(abs(nats - expected), 1e-4, "nats between the bound and its enumeration")


@law("model", when=lambda spec: spec.causal)
def rows_do_not_depend_on_later_tokens(spec: Any) -> Iterator[Check]:
    """A row of a causal network does not depend on later tokens, and a cache changes nothing."""
    net = random_network(spec)
    ids = random_text(2)
    other = torch.cat([ids[:, :4], random_text(2, seed=1)[:, 4:]], dim=1)
    with torch.no_grad():
        rows = net.hidden(ids)
        yield Check(max_abs((rows - net.hidden(other))[:, :4]), TOLERANCE, "rows that depend on later tokens")
        cache = net.new_cache()
        parts = [net.hidden(part, past_key_values=cache) for part in ids.split([3, 1, 1, LENGTH - 5], dim=1)]
    yield Check(max_abs(torch.cat(parts, dim=1) - rows), TOLERANCE, "rows with a cache")


@law("model")
def samples_do_not_depend_on_the_batch(spec: Any) -> Iterator[Check]:
    """With fixed seeds a network generates the same tokens alone and in a batch."""
    net = random_network(spec)
    canvas = Canvas.of(random_text(4).masked_fill(torch.arange(LENGTH) >= 3, MASK), MASK, seed=5)
    samplers = (s for s in members("sampler") if s.causal == spec.causal and not s.needs_planner)
    for sampler in {type(s): s for s in samplers}.values():
        together = sample(sampler, net, canvas).ids
        for b in range(4):
            alone = sample(sampler, net, canvas.select(torch.tensor([b]))).ids[0]
            differ = (alone != together[b]).sum()
            yield Check(float(differ), 0, f"tokens of {describe(sampler)} that differ in a batch")


@law("model", when=lambda spec: getattr(spec, "equivariant", False))
def reverse_complement_of_the_input_reverse_complements_the_predictions(spec: Any) -> Iterator[Check]:
    """An equivariant network gives the reversed, complemented logits for the reversed, complemented sequence, with
    padding and at every alpha, and hence has the same bound on both strands."""
    net = random_network(spec)
    ids, alpha = random_text(3), torch.tensor([0.2, 0.5, 0.9])
    ids[:, ::3] = MASK
    attention = torch.ones_like(ids, dtype=torch.bool)
    attention[1, -3:] = False
    complement = torch.tensor(net.config.complement_map)
    with torch.no_grad():
        given = net.head(net.hidden(ids, alpha, attention), mask_logit=True)
        opposite = net.head(net.hidden(complement[ids].flip(1), alpha, attention.flip(1)), mask_logit=True)
    difference = (opposite.flip(1)[..., complement] - given)[attention]
    yield Check(float((complement == torch.arange(V)).all()), 0, "a complement map without effect")
    yield Check(max_abs(difference), TOLERANCE, "logits of the opposite strand")
    text, targets = random_text(1, seed=2), torch.arange(LENGTH) >= LENGTH - 4
    bound = exact.continuous_bound(net, text, targets).sum()
    other = exact.continuous_bound(net, complement[text].flip(1), targets.flip(0)).sum()
    yield Check(abs(float(bound - other)), 1e-4, "nats between the bounds of the two strands")
