"""Sums behind a log line, memory, and model FLOPs against operations that torch counts."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unmask import registry
from unmask.models.build import PlannerConfig, attach_planner
from unmask.objectives.base import LossTerms, Noise
from unmask.process import Batch
from unmask.training.metrics import (
    BUCKETS,
    Throughput,
    Timer,
    TrainingMetrics,
    flops_per_token,
    peak_flops,
    peak_memory_gib,
)

CPU = torch.device("cpu")
ROWS, LENGTH, VOCABULARY = 16, 48, 300


def terms(mask_rate: list[float] | None, nll: torch.Tensor, masked: torch.Tensor) -> LossTerms:
    counted = torch.ones_like(masked)
    zero = torch.zeros_like(nll)
    if mask_rate is None:
        return LossTerms(zero, nll, zero, counted, nll, nll.sum())
    return LossTerms(2 * nll, zero, zero, counted, nll, nll.sum(), masked, torch.tensor(mask_rate))


def test_loss_and_cross_entropy_by_mask_rate() -> None:
    masked = torch.tensor([[True, True, False], [True, False, False], [True, True, True], [False, False, True]])
    nll = torch.arange(12.0).reshape(4, 3) * masked
    metrics = TrainingMetrics(CPU)
    metrics.add(terms([0.05, 0.59, 1.0, 0.57], nll, masked))
    metrics.end_step(1, torch.tensor(1.0), torch.tensor(0.25))
    summary = metrics.summary(metrics.sums)
    expected = {0: (0 + 1) / 2, 5: (3 + 11) / 2, 9: (6 + 7 + 8) / 3}
    assert summary["cross_entropy"] == [pytest.approx(expected[i]) if i in expected else None for i in range(BUCKETS)]
    assert summary["loss"] == pytest.approx(2 * (0 + 1 + 3 + 6 + 7 + 8 + 11) / 12)
    assert summary["bits_per_token"] == pytest.approx(summary["loss"] / math.log(2))
    assert summary["grad_norm"] == 0.25
    metrics.reset()
    assert not any(total.any() for total in metrics.sums.values())
    metrics.add(terms(None, torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)))
    assert metrics.summary(metrics.sums)["cross_entropy"] == [None] * BUCKETS


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_the_first_non_finite_step_is_remembered(loss: float, norm: float) -> None:
    metrics = TrainingMetrics(CPU)
    finite, bad = torch.ones(3, 2), torch.tensor([[1.0, 1.0], [1.0, math.inf], [math.nan, 1.0]])
    last = torch.tensor([[math.nan, 1.0], [1.0, 1.0], [1.0, 1.0]])

    def step(number: int, nats: torch.Tensor, loss: float, norm: float) -> None:
        for part in nats.split(2):
            metrics.add(terms(None, part, torch.ones_like(part, dtype=torch.bool)))
        metrics.end_step(number, torch.tensor(loss), torch.tensor(norm))

    step(1, finite, 1.0, 0.25)
    assert metrics.first_non_finite() is None
    step(2, bad, loss, norm)
    step(3, last, math.nan, math.nan)
    step(4, finite, 1.0, 1.0)
    found = metrics.first_non_finite()
    assert (found.step, found.places) == (2, [1, 2])
    assert (found.loss, found.grad_norm, found.previous_grad_norm) == pytest.approx((loss, norm, 0.25), nan_ok=True)


def test_a_lap_leaves_out_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("unmask.training.metrics.time.monotonic", lambda: now)
    timer = Timer(seconds=50.0, lap=5.0)
    now = 110.0
    with timer.paused():
        now = 130.0
    assert (timer.seconds, timer.lap) == (80.0, 15.0)
    timer.start_lap()
    now = 131.0
    assert (timer.seconds, timer.lap) == (81.0, 1.0)


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
        found = objective.loss(denoiser, Batch.of(ids), schedule, noise)
        found.loss.backward()
    counted = counter.get_total_flops() / int(found.count)
    tolerance = 0.05 if objective.trains_planner else 0.01  # a planner counts a random number of tokens
    assert flops_per_token(denoiser.config, LENGTH, objective, schedule) == pytest.approx(counted, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla V100-SXM2-16GB", None),
    ],
)
def test_peaks_are_found_by_the_name_of_the_driver(name, teraflops):
    assert peak_flops(name) == (teraflops and teraflops * 1e12)


def test_mfu_is_the_share_of_all_devices(monkeypatch):
    config, objective = network("dit").config, registry.build("objective", "subs")
    schedule = registry.build("schedule", "loglinear")
    assert set(Throughput(config, LENGTH, objective, schedule, CPU).read(1e6)) == {"memory_gib"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 3 * 2**30)
    throughput = Throughput(config, LENGTH, objective, schedule, torch.device("cuda"), devices=2)
    cost = flops_per_token(config, LENGTH, objective, schedule)
    assert throughput.read(1e6) == {"memory_gib": 3.0, "mfu": pytest.approx(1e6 * cost / (2 * 989e12))}
    unknown = SimpleNamespace(hidden_size=8, num_hidden_layers=1, vocab_size=10)
    assert flops_per_token(unknown, LENGTH, objective, schedule) is None


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_is_the_peak_that_the_system_reports():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    assert peak_memory_gib(CPU) == pytest.approx(int(lines["VmHWM"].split()[0]) / 2**20, rel=0.02)
