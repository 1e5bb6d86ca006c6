"""Sums over the steps between two log lines. They stay on the device until they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.objectives.base import LossTerms

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


class Meter:
    """Nats, tokens and cross-entropies by mask rate since the last `reset`, and the first step that was not finite.

    `tensors` is all it holds, under fixed names, so that a checkpoint between two log lines loses nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.tensors: dict[str, Tensor] = {
            "nats": torch.zeros((), device=device),
            "tokens": torch.zeros((), dtype=torch.int64, device=device),
            "grad_norm": torch.zeros((), device=device),
            "cross_entropy": torch.zeros(BUCKETS, device=device),
            "masked": torch.zeros(BUCKETS, dtype=torch.int64, device=device),
        }
        self._first_bad = torch.full((), math.inf, device=device)

    def reset(self) -> None:
        """Begin a new stretch of steps."""
        for tensor in self.tensors.values():
            tensor.zero_()

    @torch.no_grad()
    def add(self, terms: LossTerms) -> None:
        """Take in one micro-batch."""
        self.tensors["nats"] += terms.total
        self.tensors["tokens"] += terms.count
        if terms.masked is not None and terms.mask_rate is not None:
            in_bucket = _buckets(terms.mask_rate)
            masked = terms.cross_entropy * terms.masked
            self.tensors["cross_entropy"] += (masked.sum(dim=1)[:, None] * in_bucket).sum(dim=0)
            self.tensors["masked"] += (terms.masked.sum(dim=1)[:, None] * in_bucket).sum(dim=0)

    @torch.no_grad()
    def end_step(self, step: int, loss: Tensor, grad_norm: Tensor) -> None:
        """Note the gradient norm of step number `step`, and whether it or the loss is not a number."""
        self.tensors["grad_norm"].copy_(grad_norm)
        bad = torch.where(torch.isfinite(loss) & torch.isfinite(grad_norm), math.inf, float(step))
        self._first_bad = torch.minimum(self._first_bad, bad)

    def first_bad_step(self) -> int | None:
        """The first step whose loss or gradient was not finite. Waits for the device."""
        first = float(self._first_bad)
        return None if math.isinf(first) else int(first)

    def read(self) -> Reading:
        """The sums so far. Waits for the device."""
        values: dict[str, Any] = {name: tensor.tolist() for name, tensor in self.tensors.items()}
        by_rate = [
            nats / masked if masked else None
            for nats, masked in zip(values["cross_entropy"], values["masked"], strict=True)
        ]
        return Reading(values["nats"], values["tokens"], values["grad_norm"], by_rate)


def _buckets(mask_rate: Tensor) -> Tensor:
    """[B, BUCKETS] one-hot: which tenth of [0, 1] a sequence's mask rate [B] lies in."""
    bucket = (mask_rate * BUCKETS).long().clamp(0, BUCKETS - 1)
    return bucket[:, None] == torch.arange(BUCKETS, device=mask_rate.device)
