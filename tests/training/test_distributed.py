"""Optimizer state becomes full tensors under the parameters' names, and goes back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch
from torch import nn

from unmask.models import DiTSpec
from unmask.optimizers.base import AdamW, OptimizerComponent
from unmask.optimizers.muon import Muon
from unmask.training.distributed import ParameterLayout

CPU = torch.device("cpu")


def network() -> nn.Module:
    torch.manual_seed(0)
    return DiTSpec(size="nano", hidden_size=16, layers=2, heads=2, dropout=0.0).build(11, 10, 8)


def train(parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters.values():
            parameter.grad = parameter.detach() + torch.randn(parameter.shape, generator=generator)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + step)
        optimizer.step()


@pytest.mark.parametrize("config", [AdamW(), AdamW(weight_decay=0.1), Muon(weight_decay=0.1)])
def test_optimizer_state_is_saved_and_restored_exactly(config: OptimizerComponent) -> None:
    whole, broken = (dict(network().named_parameters()) for _ in range(2))
    train(whole, config.build(whole, CPU), range(6))
    before = config.build(broken, CPU)
    assert list(ParameterLayout().optimizer_state(before, broken)) == []
    train(broken, before, range(3))
    kept = {key: tensor.clone() for key, tensor in ParameterLayout().optimizer_state(before, broken)}
    assert {f"vocab_embed.embedding.{name}" for name in ("step", "exp_avg", "exp_avg_sq")} <= kept.keys()
    after = config.build(broken, CPU)
    ParameterLayout().load_optimizer_state(after, broken, kept)
    train(broken, after, range(3, 6))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)


TRIAL = """
import deepspeed, torch
from torch import nn
from unmask.training.distributed import DeepSpeedLayout

class Wrapped:
    def __init__(self, inner): self.optimizer = inner
    param_groups = property(lambda self: self.optimizer.param_groups)

def engine(stage):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    settings = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, fused=True)
    made, optimizer, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=settings)
    return made, Wrapped(optimizer), dict(network.named_parameters())

def step(made, number):
    loss = made(torch.arange(10.0).reshape(2, 5) * (1 + number)).square().mean()
    made.backward(loss)
    made.step()
    return loss.item()

for stage in (1, 2):
    layout = DeepSpeedLayout()
    first, optimizer, parameters = engine(stage)
    assert list(layout.optimizer_state(optimizer, parameters)) == []
    for number in range(3):
        step(first, number)
    weights = {k: v.clone() for k, v in layout.weights(parameters)}
    state = {k: v.clone() for k, v in layout.optimizer_state(optimizer, parameters)}
    assert state["1.weight.exp_avg"].shape == (3, 7) and float(state["1.bias.step"]) == 3
    other, second, others = engine(stage)
    layout.load_weights(others, weights)
    layout.load_optimizer_state(second, others, state)
    expected = [step(first, number) for number in (3, 4)]
    assert [step(other, number) for number in (3, 4)] == expected, stage
    for name, value in layout.optimizer_state(second, others):
        assert torch.equal(value, dict(layout.optimizer_state(optimizer, parameters))[name]), name
"""


def test_deepspeed_state_is_gathered_and_restored() -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, **alone, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
