"""The sampling loop shared by all samplers: states, seeds, call counts and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unmask.constraints.particles import ScoredTokenSampler
from unmask.laws.tables import random_table
from unmask.models import DiTSpec
from unmask.samplers import token_sampling
from unmask.samplers.ancestral import AncestralSampler
from unmask.samplers.autoregressive import AutoregressiveSampler
from unmask.samplers.base import Canvas, Positions, Sampler, State, run_sampler, sample
from unmask.samplers.eos import EosTokenSampler
from unmask.samplers.ordered import EntropyBoundedSampler, OrderedSampler, ThresholdSampler
from unmask.samplers.remasking import CorrectorSampler, ReMDMSampler
from unmask.samplers.token_sampling import TokenSampler

MASK = 1
SAMPLERS = [
    AncestralSampler(),
    AncestralSampler(steps=3),
    AutoregressiveSampler(),
    OrderedSampler(),
    OrderedSampler(order="uniform", steps=3),
    ThresholdSampler(),
    EntropyBoundedSampler(),
    ReMDMSampler(steps=4),
    CorrectorSampler(steps=4),
]


def blank(rows: int, length: int, seed: int = 0) -> Canvas:
    return Canvas.of(torch.full((rows, length), MASK), MASK, seed)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_canvas_without_masks_needs_no_call(sampler):
    states = list(run_sampler(sampler, None, Canvas.of(torch.tensor([[2, 3]]), MASK)))
    assert [state.total for state in states] == [0]
    assert states[0].confidence.tolist() == [[1.0, 1.0]]


def test_every_canvas_is_yielded():
    states = list(run_sampler(AncestralSampler(), random_table(), blank(1, 3)))
    assert [int((state.ids == MASK).sum()) for state in states] == [3, 2, 1, 0]
    assert [state.call for state in states] == [0, 1, 2, 3]


def test_a_sequence_counts_its_own_calls():
    state = State.start(blank(3, 4), torch.tensor([2, 4, 3]), 5, None)
    state = replace(state, idle_calls=torch.tensor([0, 1, 2]))
    made = []
    for call in range(5):
        made.append(state.calls_made.tolist())
        at = Positions(torch.tensor([1]), torch.tensor([0]))
        state = state.write(at, torch.tensor([0]), torch.tensor([0.5]))
        assert state.order[1, 0] == call - 1
    assert made == [[0, 0, 0], [1, 0, 0], [2, 1, 0], [2, 2, 1], [2, 3, 2]]
    assert state.select(torch.tensor([2, 0]), state.canvas, None).calls_made.tolist() == [3, 2]


B, L, V = 3, 16, 301
IN_CHUNKS = [AncestralSampler(steps=1), CorrectorSampler(steps=2), OrderedSampler(steps=2), ReMDMSampler(steps=2)]
EOS_SAMPLER = EosTokenSampler(TokenSampler(), 0)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(one.numel() for one in tree_leaves(out) if isinstance(one, Tensor))])
        return out


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(0)
    net = DiTSpec(hidden_size=16, layers=1, heads=2, dropout=0.0).build(V, V - 1, L)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.eval()


def large_canvas() -> Canvas:
    return Canvas.of(torch.full((B, L), V - 1), V - 1, seed=4)


def limit_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows of logits at a time."""
    monkeypatch.setattr(token_sampling, "LOGITS_PER_CHUNK", {"cpu": 7 * V})
    monkeypatch.setattr(token_sampling, "ENTRIES_PER_CHUNK", {"cpu": 7 * V})


@pytest.mark.parametrize(
    ("sampler", "tokens"),
    [
        *((sampler, TokenSampler()) for sampler in IN_CHUNKS),
        (AncestralSampler(steps=1), EOS_SAMPLER),
        (OrderedSampler(order="entropy", steps=1), EOS_SAMPLER),
        (AncestralSampler(steps=1), ScoredTokenSampler(EOS_SAMPLER, lambda ids, real: ids.sum(1))),
    ],
)
def test_the_logits_of_a_canvas_are_never_in_memory_at_once(monkeypatch, network, sampler: Sampler, tokens):
    limit_chunks(monkeypatch)
    with LargestTensor() as largest:
        sample(sampler, network, large_canvas(), tokens)
    assert 7 * V <= largest.numel < B * L * V // 2


@pytest.mark.parametrize(
    "tokens", [TokenSampler(), TokenSampler(temperature=0), TokenSampler(top_p=0.9, greedy_tail=0.5)]
)
@pytest.mark.parametrize("sampler", IN_CHUNKS, ids=lambda sampler: sampler.name)
def test_chunks_do_not_change_the_result(monkeypatch, network, sampler: Sampler, tokens):
    whole = sample(sampler, network, large_canvas(), tokens)
    limit_chunks(monkeypatch)
    chunked = sample(sampler, network, large_canvas(), tokens)
    for name in ("ids", "order", "confidence"):
        assert torch.equal(getattr(chunked, name), getattr(whole, name))


def test_rows_that_fit_go_through_the_head_in_one_call(monkeypatch, network):
    seen, head = [], network.head
    monkeypatch.setattr(network, "head", lambda rows, *rest: seen.append(len(rows)) or head(rows, *rest))
    sample(AncestralSampler(steps=1), network, large_canvas())
    assert seen == [B * L]
