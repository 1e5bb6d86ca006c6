"""Blocks from left to right, and the decoding of LLaDA as it is published."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.laws.models import MASK, V
from unmask.models import DiTSpec
from unmask.samplers.base import Canvas, run_sampler, sample
from unmask.samplers.block import BlockSampler
from unmask.samplers.ordered import OrderedSampler
from unmask.samplers.token_sampling import TokenSampler

GREEDY = TokenSampler(temperature=0.0)


def network() -> Any:
    torch.manual_seed(0)
    net = DiTSpec(size="nano", hidden_size=16, layers=1, heads=2, dropout=0.0, absolute_positions=True).build(
        V, MASK, 32
    )
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return net.eval()


def prompted(masks: int = 8, rows: int = 2) -> Canvas:
    ids = torch.full((rows, 3 + masks), MASK)
    ids[:, :3] = torch.tensor([1, 2, 3])
    ids[1:, 0] = 5
    return Canvas.of(ids, MASK)


@torch.no_grad()
def published_decoding(net: Any, ids: Tensor, prompt: int, size: int, steps: int) -> Tensor:
    """Greedy low-confidence remasking within blocks, as published: all masks are predicted, and of the current block
    the most confident ones are kept, equally many in every call and one more in the first calls."""
    ids = ids.clone()
    blocks = (ids.shape[1] - prompt) // size
    for block in range(blocks):
        stop = prompt + (block + 1) * size
        calls = steps // blocks
        for call in range(calls):
            keep = size // calls + (call < size % calls)
            p, token = net(ids).logits.softmax(-1).max(-1)
            p = p.masked_fill(ids != MASK, -torch.inf)
            p[:, stop:] = -torch.inf
            for row in range(len(ids)):
                kept = p[row].topk(keep).indices
                ids[row, kept] = token[row, kept]
    return ids


@pytest.mark.parametrize(("size", "steps"), [(4, 8), (4, 4), (2, 4), (8, 2)])
def test_greedy_blocks_are_the_published_low_confidence_remasking(size, steps):
    net, canvas = network(), prompted()
    expected = published_decoding(net, canvas.ids, 3, size, steps)
    found = sample(BlockSampler(size=size, steps=steps), net, canvas, GREEDY)
    assert found.total == steps
    assert torch.equal(found.ids, expected)


def test_a_block_is_finished_before_the_next_begins():
    states = list(run_sampler(BlockSampler(size=3), network(), prompted(8)))
    for state in states:
        written = (state.written[0].nonzero()[:, 0] - 3).tolist()
        block = (len(written) - 1) // 3
        assert set(range(3 * block)) <= set(written) <= set(range(3 * block + 3))
    assert [int(state.written[0].sum()) for state in states] == list(range(9))


def test_one_block_is_the_ordered_sampler():
    net, canvas = network(), prompted()
    for steps in (None, 3):
        one = sample(BlockSampler(size=100, steps=steps), net, canvas, GREEDY)
        assert torch.equal(one.ids, sample(OrderedSampler(steps=steps), net, canvas, GREEDY).ids)


def test_calls_are_shared_out_over_the_blocks():
    assert BlockSampler(size=4, steps=5).calls_by_block(10) == [[4], [2, 2], [1, 1]]
    assert BlockSampler(size=4).calls_by_block(6) == [[1, 1, 1, 1], [1, 1]]
    assert BlockSampler(size=4, steps=3).calls_by_block(0) == []
    with pytest.raises(UnmaskError, match="steps must be at least 3, one call for each block of 4 of 10 tokens, got 2"):
        sample(BlockSampler(size=4, steps=2), network(), prompted(10))
