"""Sums over the steps between two log lines. They stay on the device until they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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
