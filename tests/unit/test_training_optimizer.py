"""AdamW, its warm-up, and the average of the weights."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from unmask.config import OptimizerConfig
from unmask.training.ema import EMA
from unmask.training.optimizer import adamw, learning_rate, set_learning_rate

CPU = torch.device("cpu")


@pytest.mark.parametrize(("step", "share"), [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (10_000, 1.0)])
def test_rate_rises_linearly_and_stays(step: int, share: float) -> None:
    config = OptimizerConfig(learning_rate=2e-3, warmup=4)
    assert learning_rate(config, step) == pytest.approx(2e-3 * share)


def test_without_warmup_the_first_step_has_the_full_rate() -> None:
    assert learning_rate(OptimizerConfig(learning_rate=2e-3, warmup=0), 0) == 2e-3


def test_first_step_of_adamw_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = adamw([weight], OptimizerConfig(learning_rate=0.5, eps=0.1, weight_decay=0.2), CPU)
    set_learning_rate(optimizer, 0.01)
    weight.grad = torch.tensor([0.3, -0.1])
    optimizer.step()
    decayed = torch.tensor([1.0, -2.0]) * (1 - 0.01 * 0.2)
    expected = decayed - 0.01 * torch.tensor([0.3 / 0.4, -0.1 / 0.2])
    torch.testing.assert_close(weight.detach(), expected)


def test_ema_decay_grows_to_its_limit() -> None:
    ema = EMA({"w": nn.Parameter(torch.zeros(1))}, 0.9)
    assert ema.decay_at(1) == pytest.approx(2 / 11)
    assert ema.decay_at(20) == pytest.approx(21 / 30)
    assert ema.decay_at(1000) == 0.9


def test_ema_follows_the_recursion() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 5.0]))
    ema = EMA({"w": weight}, 0.5)
    expected = weight.detach().clone()
    for n in range(1, 15):
        weight.data = weight.data * 1.1 - 0.3
        ema.update(n)
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * weight.detach()
    torch.testing.assert_close(ema.weights["w"], expected)


def test_applied_average_comes_and_goes_bit_by_bit() -> None:
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


def test_decay_zero_is_the_weights_themselves() -> None:
    weight = nn.Parameter(torch.ones(3))
    ema = EMA({"w": weight}, 0.0)
    with torch.no_grad():
        weight.mul_(4)
    ema.update(1)
    with ema.applied():
        assert torch.equal(weight, torch.full((3,), 4.0))
    assert torch.equal(ema.weights["w"], weight)
