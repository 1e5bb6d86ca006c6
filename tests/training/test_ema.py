"""What an optimiser keeps, out and back, and the average of the weights."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from unmask.models import DiTSpec
from unmask.optimizers.base import AdamW, OptimizerComponent, set_learning_rate
from unmask.optimizers.muon import Muon
from unmask.training.distributed import ParameterLayout
from unmask.training.ema import EMA

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return DiTSpec(size="nano", hidden_size=16, layers=2, heads=2, dropout=0.0).build(11, 10, 8)


def train(parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters.values():
            parameter.grad = parameter.detach() + torch.randn(parameter.shape, generator=generator)
        set_learning_rate(optimizer, 0.01 / (1 + step))
        optimizer.step()


@pytest.mark.parametrize("config", [AdamW(), AdamW(weight_decay=0.1), Muon(weight_decay=0.1)])
def test_what_is_kept_goes_out_and_back_to_the_bit(config: OptimizerComponent) -> None:
    whole, broken = (dict(network().named_parameters()) for _ in range(2))
    train(whole, config.build(whole, CPU), range(6))
    before = config.build(broken, CPU)
    train(broken, before, range(3))
    kept = {key: tensor.clone() for key, tensor in ParameterLayout().moments(before, broken)}
    after = config.build(broken, CPU)
    ParameterLayout().load_moments(after, broken, kept)
    train(broken, after, range(3, 6))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


def test_what_is_kept_is_named_after_the_parameters() -> None:
    parameters = dict(network().named_parameters())
    optimizer = Muon().build(parameters, CPU)
    assert list(ParameterLayout().moments(optimizer, parameters)) == []
    train(parameters, optimizer, range(1))
    kept = dict(ParameterLayout().moments(optimizer, parameters))
    assert kept["blocks.1.attn_qkv.weight.momentum_buffer"].shape == (48, 16)
    assert {key.rpartition(".")[2] for key in kept if key.startswith("vocab_embed.embedding")} == {
        "step",
        "exp_avg",
        "exp_avg_sq",
    }
    assert {key.rpartition(".")[0] for key in kept} == set(parameters)


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
