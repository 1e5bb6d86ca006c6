"""Metrics of a run: sums behind a log line, the first non-finite step, time, memory, and model FLOPs utilisation."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.objectives.base import LossTerms, Objective
from unmask.schedules import Schedule

BUCKETS = 10
"""Intervals of the mask rate by which cross-entropies are averaged."""


@dataclass(frozen=True)
class NonFiniteStep:
    """The first step with a non-finite loss or gradient; `places` are indices into the samples of this process."""

    step: int
    loss: float
    grad_norm: float
    previous_grad_norm: float
    places: list[int]


class TrainingMetrics:
    """Nats, tokens and cross-entropies by mask rate since the last `reset`, and the first non-finite step.

    `sums` holds what this process has seen; summed over all processes, it is part of a checkpoint. `tokens` are all
    counted positions, `text_tokens` those without learned padding. Adding does not wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums: dict[str, Tensor] = {
            "nats": torch.zeros((), device=device),
            "tokens": torch.zeros((), dtype=torch.int64, device=device),
            "text_tokens": torch.zeros((), dtype=torch.int64, device=device),
            "cross_entropy": torch.zeros(BUCKETS, device=device),
            "masked": torch.zeros(BUCKETS, dtype=torch.int64, device=device),
        }
        self.grad_norm = torch.zeros((), device=device)
        """Norm of the last step's gradient before clipping."""
        self._non_finite: list[Tensor] = []
        self._first_step = torch.full((), math.inf, device=device)
        self._first_values = torch.zeros(3, device=device)
        self._first_samples = torch.zeros(0, dtype=torch.bool, device=device)

    def reset(self) -> None:
        for total in self.sums.values():
            total.zero_()

    @torch.no_grad()
    def add(self, terms: LossTerms, padding: Tensor | None = None) -> None:
        """Add one micro-batch; `padding` [B, L] marks counted positions that are not tokens of the texts, if any."""
        self._non_finite.append(~torch.isfinite(terms.nelbo.sum(dim=1)))
        self.sums["nats"] += terms.total
        self.sums["tokens"] += terms.count
        self.sums["text_tokens"] += terms.count if padding is None else (terms.counted & ~padding).sum()
        if terms.masked is not None and terms.mask_rate is not None:
            bucket = (terms.mask_rate * BUCKETS).long().clamp(0, BUCKETS - 1)
            one_hot = bucket[:, None] == torch.arange(BUCKETS, device=bucket.device)
            masked = terms.cross_entropy * terms.masked
            self.sums["cross_entropy"] += (masked.sum(dim=1)[:, None] * one_hot).sum(dim=0)
            self.sums["masked"] += (terms.masked.sum(dim=1)[:, None] * one_hot).sum(dim=0)

    @torch.no_grad()
    def end_step(self, step: int, loss: Tensor, grad_norm: Tensor) -> None:
        """End step number `step` (1, 2, ...), and remember it if it is the first with a non-finite loss or gradient."""
        values = torch.stack([loss.float(), grad_norm.float(), self.grad_norm])
        self.grad_norm.copy_(grad_norm)
        samples = torch.cat(self._non_finite)
        self._non_finite = []
        finite = torch.isfinite(loss) & torch.isfinite(grad_norm)
        first = ~finite & torch.isinf(self._first_step)
        before = self._first_samples if len(self._first_samples) else torch.zeros_like(samples)
        self._first_samples = torch.where(first, samples, before)
        self._first_values = torch.where(first, values, self._first_values)
        self._first_step = torch.where(first, float(step), self._first_step)

    def first_non_finite(self) -> NonFiniteStep | None:
        """The first non-finite step, or None. Waits for the device."""
        step = float(self._first_step)
        if math.isinf(step):
            return None
        loss, grad_norm, previous_grad_norm = self._first_values.tolist()
        places = torch.nonzero(self._first_samples).flatten().tolist()
        return NonFiniteStep(int(step), loss, grad_norm, previous_grad_norm, places)

    def summary(self, sums: Mapping[str, Tensor]) -> dict[str, Any]:
        """The entries of a log line from the `sums` of all processes. Waits for the device."""
        values: dict[str, Any] = {name: tensor.tolist() for name, tensor in sums.items()}
        loss = values["nats"] / max(1, values["text_tokens"])
        by_mask_rate = [
            nats / masked if masked else None
            for nats, masked in zip(values["cross_entropy"], values["masked"], strict=True)
        ]
        return {
            "loss": loss,
            "bits_per_token": loss / math.log(2.0),
            "grad_norm": float(self.grad_norm),
            "cross_entropy": by_mask_rate,
        }


class Timer:
    """Seconds of the run, and of the lap since the last log line, without pauses. A resumed run continues both."""

    def __init__(self, seconds: float = 0.0, lap: float = 0.0) -> None:
        now = time.monotonic()
        self._start = now - seconds
        self._lap_start = now - lap

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    @property
    def lap(self) -> float:
        return time.monotonic() - self._lap_start

    def start_lap(self) -> None:
        self._lap_start = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block out of the lap."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._lap_start += time.monotonic() - start


# ---- throughput ------------------------------------------------------------------------------------------------------

GIB = 2**30
FORWARD_AND_BACKWARD = 6
"""Floating-point operations per weight and token: a multiplication and an addition, once forward, twice backward."""

PEAK_TERAFLOPS = {
    "B200": 2250, "B100": 1750,
    "H200": 989, "H200 NVL": 835, "GH200": 989, "H100": 989, "H100 PCIe": 756, "H100 NVL": 835, "H20": 148,
    "A100": 312, "A40": 150, "A30": 165, "A10G": 70, "A10": 125, "RTX A6000": 155,
    "L40S": 362, "L40": 181, "L4": 121, "RTX 6000 Ada": 364,
    "RTX 5090": 210, "RTX 4090": 165, "RTX 3090": 71,
}  # fmt: skip
"""Peak of dense bf16 matrix products with float32 accumulation, as published by NVIDIA."""


class Throughput:
    """Peak memory and model FLOPs utilisation (MFU) of a run on `devices` GPUs of one kind."""

    def __init__(
        self, config: Any, length: int, objective: Objective, schedule: Schedule, device: torch.device, devices: int = 1
    ) -> None:
        self._device = device
        self._flops = flops_per_token(config, length, objective, schedule)
        peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        self._peak = None if peak is None else peak * devices

    def read(self, tokens_per_second: float) -> dict[str, float]:
        """`memory_gib`, and `mfu` if the GPU's peak and the model's FLOPs are known."""
        reading = {}
        if (memory := peak_memory_gib(self._device)) is not None:
            reading["memory_gib"] = memory
        if self._peak is not None and self._flops is not None:
            reading["mfu"] = tokens_per_second * self._flops / self._peak
        return reading


def flops_per_token(config: Any, length: int, objective: Objective, schedule: Schedule) -> float | None:
    """Floating-point operations of forward and backward pass per counted token; None for an unknown architecture.

    The head is applied to predicted positions alone. An objective that predicts visible positions makes a second pass
    over the clean row. A planner is trained on a frozen network, which saves the backward pass (two thirds), and counts
    masked tokens alone.
    """
    if not hasattr(config, "num_attention_heads"):
        return None
    trunk, head = trunk_flops(config, length), head_flops(config)
    extra, share = int(objective.needs_visible_rows), predicted_share(objective, schedule)
    flops = (1 + extra) * trunk + (share + extra) * head
    return flops / 3 / share if objective.trains_planner else flops


def trunk_flops(config: Any, length: float) -> float:
    """Forward and backward FLOPs of all blocks per token that attends to `length` tokens."""
    width, layers, encoder = config.hidden_size, config.num_hidden_layers, getattr(config, "num_encoder_layers", 0)
    attentions = encoder + layers * (2 if encoder else 1)
    weights = (4 * attentions + 2 * config.mlp_ratio * (encoder + layers)) * width**2
    return FORWARD_AND_BACKWARD * weights + 12 * attentions * width * length


def head_flops(config: Any) -> float:
    """Forward and backward FLOPs of the output layer per row."""
    return FORWARD_AND_BACKWARD * config.hidden_size * config.vocab_size


def predicted_share(objective: Objective, schedule: Schedule) -> float:
    """The mean share of positions that the output layer predicts."""
    if objective.causal:
        return 1.0
    if (rate := getattr(objective, "rate", None)) is not None:
        return rate
    midpoints = (torch.arange(1000) + 0.5) / 1000
    return float(schedule.mask_rate(midpoints).mean())


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 operations per second of a GPU by its driver's name, or None if it is not in the table."""
    words = device_name.replace("-", " ").split()
    if "Laptop" in words:
        return None

    def matches(gpu: str) -> bool:
        rest = iter(words)
        return all(word in rest for word in gpu.split())  # the words of `gpu`, in this order

    known = [gpu for gpu in PEAK_TERAFLOPS if matches(gpu)]
    return PEAK_TERAFLOPS[max(known, key=len)] * 1e12 if known else None


def peak_memory_gib(device: torch.device) -> float | None:
    """Peak memory of the run so far: reserved on the GPU, or resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / GIB
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / GIB if sys.platform == "darwin" else peak * 1024 / GIB
