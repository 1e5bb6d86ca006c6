"""The exponential moving average of the weights."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from unmask.training.ema import EMA


@pytest.mark.parametrize("most", [0.5, 0.0])
def test_updates_follow_the_recursion(most: float) -> None:
    weight = nn.Parameter(torch.tensor([1.0, 5.0]))
    ema = EMA({"w": weight}, most)
    expected = weight.detach().clone()
    for n in range(1, 15):
        weight.data = weight.data * 1.1 - 0.3
        ema.update(n)
        decay = min(most, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * weight.detach()
    torch.testing.assert_close(ema.weights["w"], expected)
    with ema.applied():
        torch.testing.assert_close(weight.detach(), expected)


def test_the_average_is_swapped_in_and_out_exactly() -> None:
    weight = nn.Parameter(torch.randn(7))
    ema = EMA({"w": weight}, 0.999)
    with torch.no_grad():
        weight.add_(torch.randn(7))
    ema.update(1)
    own, average = weight.detach().clone(), ema.weights["w"].clone()
    with contextlib.suppress(InterruptedError), ema.applied():
        inside = weight.detach().clone()
        raise InterruptedError
    assert torch.equal(inside, average)
    assert torch.equal(weight, own)
    assert torch.equal(ema.weights["w"], average)
