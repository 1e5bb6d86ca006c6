"""However few calls write a canvas, its logits are never in memory together, and it is written as if they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unmask.constraints.particles import ScoredTokenSampler
from unmask.models import DiTSpec
from unmask.samplers import token_sampling as draws
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.base import Canvas, Sampler, sample
from unmask.samplers.ending import EosTokenSampler
from unmask.samplers.ordered import OrderedSampler
from unmask.samplers.remasking import CorrectorSampler, ReMDMSampler
from unmask.samplers.token_sampling import TokenSampler

B, L, V = 3, 16, 301
SAMPLERS = [AncestralSampler(steps=1), CorrectorSampler(steps=2), OrderedSampler(steps=2), ReMDMSampler(steps=2)]


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor has that any operation has made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [one.numel() for one in tree_leaves(made) if isinstance(one, Tensor)]
        self.numel = max([self.numel, *sizes])
        return made


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(0)
    net = DiTSpec(hidden_size=16, layers=1, heads=2, dropout=0.0).build(V, V - 1, L)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.eval()


def canvas() -> Canvas:
    return Canvas.of(torch.full((B, L), V - 1), V - 1, seed=4)


def seven_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "LOGITS_PER_CHUNK", {"cpu": 7 * V})
    monkeypatch.setattr(draws, "ENTRIES_PER_CHUNK", {"cpu": 7 * V})


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)
def test_the_logits_of_a_canvas_are_never_held_together(monkeypatch, network, sampler: Sampler):
    seven_rows_at_once(monkeypatch)
    with Largest() as largest:
        sample(sampler, network, canvas())
    assert 7 * V <= largest.numel < B * L * V // 2


@pytest.mark.parametrize(
    "rule", [TokenSampler(), TokenSampler(temperature=0), TokenSampler(top_p=0.9, greedy_tail=0.5)]
)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)
def test_rows_are_written_as_if_all_went_through_the_head_together(monkeypatch, network, sampler: Sampler, rule):
    together = sample(sampler, network, canvas(), rule)
    seven_rows_at_once(monkeypatch)
    apart = sample(sampler, network, canvas(), rule)
    for name in ("ids", "order", "confidence"):
        assert torch.equal(getattr(apart, name), getattr(together, name))


@pytest.mark.parametrize(
    "rule",
    [
        EosTokenSampler(TokenSampler(), 0),
        ScoredTokenSampler(EosTokenSampler(TokenSampler(), 0), lambda ids, real: ids.sum(1)),
    ],
)
def test_rules_that_choose_together_look_at_some_rows_at_a_time(monkeypatch, network, rule):
    seven_rows_at_once(monkeypatch)
    with Largest() as largest:
        sample(AncestralSampler(steps=1), network, canvas(), rule)
    assert largest.numel < B * L * V // 2


def test_rows_that_fit_go_through_the_head_in_one_call(monkeypatch, network):
    monkeypatch.setattr(draws, "LOGITS_PER_CHUNK", {"cpu": B * L * V})
    seen = []
    head = network.head
    monkeypatch.setattr(network, "head", lambda rows, *rest: seen.append(len(rows)) or head(rows, *rest))
    sample(AncestralSampler(steps=1), network, canvas())
    assert seen == [B * L]
