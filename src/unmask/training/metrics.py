"""How hard the machine works: memory at its peak, and the share of a GPU's arithmetic that the network uses (MFU)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmask.objectives.base import LossTerms, Objective
from unmask.schedules import Schedule

BUCKETS = 10


@dataclass(frozen=True)
class Reading:
    """What a meter has seen: `nats` over `tokens`; `cross_entropy` in nats a masked token by mask rate (None: no such).

    `grad_norm` is that of the last step, before clipping.
    """

    nats: float
    tokens: int
    grad_norm: float
    cross_entropy: list[float | None]

    def as_dict(self) -> dict[str, Any]:
        """The part of a log line that a meter knows."""
        loss = self.nats / max(1, self.tokens)
        return {
            "loss": loss,
            "bits_per_token": loss / math.log(2.0),
            "grad_norm": self.grad_norm,
            "cross_entropy": self.cross_entropy,
        }


class Ruin(NamedTuple):
    """Of the first step that was not finite: its loss and gradient norm, and the gradient norm of the step before."""

    loss: float
    grad_norm: float
    grad_norm_before: float


Sums = Mapping[str, Tensor]


def _as_they_are(sums: Sums) -> Sums:
    return sums


class Meter:
    """Nats, tokens and cross-entropies by mask rate since the last `reset`, and the first step that was not finite.

    `sums` is what this process has seen, under fixed names; the sums of all processes are those of the run. They are
    saved, so that a checkpoint between two log lines loses nothing. `grad_norm` is the same everywhere.
    """

    def __init__(self, device: torch.device) -> None:
        self.sums: dict[str, Tensor] = {
            "nats": torch.zeros((), device=device),
            "tokens": torch.zeros((), dtype=torch.int64, device=device),
            "cross_entropy": torch.zeros(BUCKETS, device=device),
            "masked": torch.zeros(BUCKETS, dtype=torch.int64, device=device),
        }
        self.grad_norm = torch.zeros((), device=device)
        self._first_bad = torch.full((), math.inf, device=device)
        self._ruin = torch.zeros(len(Ruin._fields), device=device)
        self._ruined: list[Tensor] = []
        self._first_ruined = torch.zeros(0, dtype=torch.bool, device=device)

    def reset(self) -> None:
        """Begin a new stretch of steps."""
        for total in self.sums.values():
            total.zero_()

    @torch.no_grad()
    def add(self, terms: LossTerms) -> None:
        """Take in one micro-batch."""
        self._ruined.append(~torch.isfinite(terms.nelbo.sum(dim=1)))
        self.sums["nats"] += terms.total
        self.sums["tokens"] += terms.count
        if terms.masked is not None and terms.mask_rate is not None:
            in_bucket = _buckets(terms.mask_rate)
            masked = terms.cross_entropy * terms.masked
            self.sums["cross_entropy"] += (masked.sum(dim=1)[:, None] * in_bucket).sum(dim=0)
            self.sums["masked"] += (terms.masked.sum(dim=1)[:, None] * in_bucket).sum(dim=0)

    @torch.no_grad()
    def end_step(self, step: int, loss: Tensor, grad_norm: Tensor) -> None:
        """Note the gradient norm of step number `step`, and whether it or the loss is not a number."""
        facts = torch.stack([loss.float(), grad_norm.float(), self.grad_norm])
        self.grad_norm.copy_(grad_norm)
        good = torch.isfinite(loss) & torch.isfinite(grad_norm)
        ruined = torch.cat(self._ruined)
        self._ruined = []
        news = ~good & torch.isinf(self._first_bad)
        known = self._first_ruined if len(self._first_ruined) else torch.zeros_like(ruined)
        self._first_ruined = torch.where(news, ruined, known)
        self._ruin = torch.where(news, facts, self._ruin)
        self._first_bad = torch.where(news, float(step), self._first_bad)

    def first_bad_step(self) -> int | None:
        """The first step whose loss or gradient was not finite. Waits for the device."""
        first = float(self._first_bad)
        return None if math.isinf(first) else int(first)

    def ruin(self) -> Ruin:
        """What the first bad step looked like. Waits for the device."""
        return Ruin(*self._ruin.tolist())

    def ruined_places(self) -> list[int]:
        """The places among this process's samples whose loss was not finite in the first bad step."""
        return torch.nonzero(self._first_ruined).flatten().tolist()

    def read(self, total: Callable[[Sums], Sums] = _as_they_are) -> Reading:
        """The sums so far, over all processes where `total` adds theirs up. Waits for the device."""
        values: dict[str, Any] = {name: tensor.tolist() for name, tensor in total(self.sums).items()}
        by_rate = [
            nats / masked if masked else None
            for nats, masked in zip(values["cross_entropy"], values["masked"], strict=True)
        ]
        return Reading(values["nats"], values["tokens"], float(self.grad_norm), by_rate)


def _buckets(mask_rate: Tensor) -> Tensor:
    """[B, BUCKETS] one-hot: which tenth of [0, 1] a sequence's mask rate [B] lies in."""
    bucket = (mask_rate * BUCKETS).long().clamp(0, BUCKETS - 1)
    return bucket[:, None] == torch.arange(BUCKETS, device=mask_rate.device)


GIB = 2**30
FORWARD_AND_BACKWARD = 6
"""Floating-point operations a weight costs a token: a product and a sum, forward once and backward twice."""

PEAK_TERAFLOPS = {
    "B200": 2250,
    "B100": 1750,
    "H200 NVL": 835,
    "H200": 989,
    "GH200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "H20": 148,
    "A100": 312,
    "A40": 150,
    "A30": 165,
    "A10G": 70,
    "A10": 125,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "RTX A6000": 155,
    "RTX 6000 Ada": 364,
    "RTX 5090": 210,
    "RTX 4090": 165,
    "RTX 3090": 71,
}
"""Dense bf16 products with float32 sums, as the makers state them."""


class Throughput:
    """What a run asks of its device. `devices` of the same kind share the work."""

    def __init__(
        self,
        config: Any,
        length: int,
        objective: Objective,
        schedule: Schedule,
        device: torch.device,
        devices: int = 1,
    ) -> None:
        self._device = device
        self._flops = flops_per_token(config, length, objective, schedule)
        peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        self._peak = None if peak is None else peak * devices

    def read(self, tokens_per_second: float) -> dict[str, float]:
        """`memory_gib`, and `mfu` where the peak of the device and the cost of the network are known."""
        reading = {}
        if (memory := peak_memory_gib(self._device)) is not None:
            reading["memory_gib"] = memory
        if self._peak is not None and self._flops is not None:
            reading["mfu"] = tokens_per_second * self._flops / self._peak
        return reading


def flops_per_token(config: Any, length: int, objective: Objective, schedule: Schedule) -> float | None:
    """Floating-point operations of forward and backward pass for each counted token; None for a foreign network.

    6 for every weight a token meets, 12 D L a block for attention among all L tokens of width D, and the head on the
    rows that are predicted alone. A bound that predicts visible rows too reads the clean row in a pass of its own. A
    planner's network is not trained, so that two thirds of that are not made, and masked tokens alone are counted.
    """
    if not hasattr(config, "mlp_ratio"):
        return None
    trunk, head = trunk_flops(config, length), head_flops(config)
    extra, share = int(objective.needs_visible_rows), predicted_share(objective, schedule)
    a_row = (1 + extra) * trunk + (share + extra) * head
    return a_row / 3 / share if objective.trains_planner else a_row


def trunk_flops(config: Any, length: float) -> float:
    """Operations of forward and backward pass through the blocks for a token that sees `length` tokens."""
    width, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 + 2 * config.mlp_ratio) * width**2
    return FORWARD_AND_BACKWARD * weights + 12 * layers * width * length


def head_flops(config: Any) -> float:
    """Operations of forward and backward pass through the projection of one row to the vocabulary."""
    return FORWARD_AND_BACKWARD * config.hidden_size * config.vocab_size


def predicted_share(objective: Objective, schedule: Schedule) -> float:
    """The mean share of a row that goes through the head."""
    if objective.causal:
        return 1.0
    middles = (torch.arange(1000) + 0.5) / 1000
    return float(schedule.mask_rate(middles).mean())


def peak_flops(name: str) -> float | None:
    """The dense bf16 peak of a GPU by the name its driver gives, in operations a second; None where not known."""
    words = name.replace("-", " ").split()
    known = [card for card in PEAK_TERAFLOPS if _in_order(card.split(), words) and "Laptop" not in words]
    return max((len(card), PEAK_TERAFLOPS[card]) for card in known)[1] * 1e12 if known else None


def peak_memory_gib(device: torch.device) -> float | None:
    """The most memory the run has held so far: taken from the GPU where it computes on one, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / GIB
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / GIB if sys.platform == "darwin" else peak * 1024 / GIB


def _in_order(card: list[str], words: list[str]) -> bool:
    """Whether the words of a card's name stand in a longer name, in this order."""
    rest = iter(words)
    return all(word in rest for word in card)
