"""DeepSpeed's flattened state becomes whole tensors under the network's names, and goes back, without Accelerate."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")

TRIAL = """
import deepspeed, torch
from torch import nn
from unmask.training.layout import DeepSpeedLayout

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
    assert list(layout.moments(optimizer, parameters)) == []
    for number in range(3):
        step(first, number)
    weights, moments = dict(layout.weights(parameters)), dict(layout.moments(optimizer, parameters))
    weights, moments = ({k: v.clone() for k, v in kept.items()} for kept in (weights, moments))
    assert moments["1.weight.exp_avg"].shape == (3, 7) and float(moments["1.bias.step"]) == 3
    other, second, others = engine(stage)
    layout.load_weights(others, weights)
    layout.load_moments(second, others, moments)
    expected = [step(first, number) for number in (3, 4)]
    assert [step(other, number) for number in (3, 4)] == expected, stage
    for name, value in layout.moments(second, others):
        assert torch.equal(value, dict(layout.moments(optimizer, parameters))[name]), name
"""


def test_moments_are_gathered_and_put_back() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, **alone, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
