"""Memory and model FLOPs: the formula against operations that torch counts, and the peaks of known cards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unmask import registry
from unmask.models.build import PlannerConfig, attach_planner
from unmask.objectives.base import Noise
from unmask.process import Batch
from unmask.training.metrics import Throughput, flops_per_token, peak_flops, peak_memory_gib

ROWS, LENGTH, VOCABULARY = 16, 48, 300
CPU = torch.device("cpu")


def network(model: str):
    spec = registry.build("model", {"name": model, "hidden_size": 32, "layers": 2, "heads": 2, "dropout": 0.0})
    return spec.build(VOCABULARY, VOCABULARY - 1, LENGTH)


@pytest.mark.parametrize(
    ("model", "objective"),
    [
        ("dit", {"name": "subs"}),
        ("dit", {"name": "mask-count"}),
        ("dit", {"name": "d3pm", "carry_over": False, "zero_masking": True}),
        ("causal", {"name": "ar"}),
        ("dit", {"name": "planner"}),
    ],
)
@pytest.mark.parametrize("schedule", ["loglinear", "cosine"])
def test_flops_are_those_that_torch_counts(model, objective, schedule):
    denoiser, objective = network(model), registry.build("objective", objective)
    schedule = registry.build("schedule", "loglinear" if objective.name == "mask-count" else schedule)
    if objective.trains_planner:
        attach_planner(denoiser, PlannerConfig(width=1))
    torch.manual_seed(0)
    ids = torch.randint(0, VOCABULARY - 1, (ROWS, LENGTH))
    noise = Noise((torch.arange(ROWS) + 0.5) / ROWS, torch.rand(ROWS, LENGTH))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        terms = objective.loss(denoiser, Batch.of(ids), schedule, noise)
        terms.loss.backward()
    counted = counter.get_total_flops() / int(terms.count)
    drawn = 0.05 if objective.trains_planner else 0.01  # a planner is paid for by masked tokens, whose number is drawn
    assert flops_per_token(denoiser.config, LENGTH, objective, schedule) == pytest.approx(counted, rel=drawn)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA B200", 2250),
    ],
)
def test_cards_are_known_by_the_name_their_driver_gives(name, teraflops):
    assert peak_flops(name) == teraflops * 1e12


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "Tesla V100-SXM2-16GB", "AMD Instinct"])
def test_no_peak_is_made_up(name):
    assert peak_flops(name) is None


def test_mfu_is_the_share_of_all_devices(monkeypatch):
    config, objective = network("dit").config, registry.build("objective", "subs")
    schedule = registry.build("schedule", "loglinear")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 3 * 2**30)
    gauge = Throughput(config, LENGTH, objective, schedule, torch.device("cuda"), devices=2)
    cost = flops_per_token(config, LENGTH, objective, schedule)
    assert gauge.read(1e6) == {"memory_gib": 3.0, "mfu": pytest.approx(1e6 * cost / (2 * 989e12))}


def test_on_a_cpu_there_is_memory_and_no_mfu():
    config, objective = network("dit").config, registry.build("objective", "subs")
    reading = Throughput(config, LENGTH, objective, registry.build("schedule", "loglinear"), CPU).read(1e6)
    assert set(reading) == {"memory_gib"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux has another witness")
def test_memory_is_the_peak_that_the_system_knows():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert peak_memory_gib(CPU) == pytest.approx(int(lines["VmHWM"].split()[0]) / 2**20, rel=0.02)


def test_a_foreign_network_has_no_known_cost():
    foreign = SimpleNamespace(hidden_size=8, num_hidden_layers=1, vocab_size=10)
    objective, schedule = registry.build("objective", "subs"), registry.build("schedule", "loglinear")
    assert flops_per_token(foreign, LENGTH, objective, schedule) is None
