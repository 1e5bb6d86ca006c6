"""The laws of the objective that bounds no text: what a planner learns from, enumerated, and who learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.laws import exact
from unmask.laws.base import Finding, describe, law, members
from unmask.laws.tables import Watched, odds, random_table
from unmask.objectives.base import Noise, Objective
from unmask.schedules import LogLinear

TEXT, MASK = torch.tensor([2, 0, 3]), 1
RATES = torch.tensor([0.0, 2.0**-33, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])


def is_bound(objective: Objective) -> bool:
    """Whether the value of an objective bounds -log p of a text."""
    return not objective.plans


def plans(objective: Objective) -> bool:
    """Whether it trains a planner."""
    return objective.plans


@law("objective", when=plans)
def planner_pays_for_its_surprise(objective: Objective) -> Iterator[Finding]:
    """The loss at a masked position is -log of the chance that the planner gave to what is true of it: that the most
    likely token is the text's, or that it is not. Nothing else is counted."""
    for schedule in members("schedule"):
        for conditioned in (False, True):
            denoiser: Any = Watched(random_table(conditioned=conditioned))
            terms = objective.loss(denoiser, Batch.of(TEXT.expand(len(RATES), -1)), schedule, _noise())
            should = _surprise(denoiser)
            apart = (terms.nelbo - should).abs().max()
            yield Finding(float(apart), 1e-5, f"nats from the enumerated loss with {describe(schedule)}")
            uncounted = int((terms.counted != (denoiser.calls[0] == MASK)).sum())
            yield Finding(uncounted, 0, "positions counted that are not masked, or the reverse")
            yield Finding(abs(float(terms.trained - should.sum())), 1e-4, "nats between the loss and what is trained")


@law("objective", when=plans)
def denoiser_learns_nothing(objective: Objective) -> Iterator[Finding]:
    """Gradients reach the planner, all finite, and nothing of the denoiser."""
    table = _Learning(random_table())
    terms = objective.loss(table, Batch.of(TEXT.expand(len(RATES), -1)), LogLinear(), _noise())
    denoiser, planner = torch.autograd.grad(terms.trained, [table.logits, table.scale], allow_unused=True)
    yield Finding(float(denoiser is not None), 0, "gradients that reach the denoiser")
    yield Finding(float(not (planner.isfinite() and planner != 0)), 0, "planners without a finite gradient")


@law("objective", when=plans)
def planner_sees_open_tokens_alone(objective: Objective) -> Iterator[Finding]:
    """Frozen tokens and pads are never corrupted nor counted."""
    denoiser: Any = Watched(random_table())
    attention, frozen = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    size = len(RATES)
    batch = Batch.of(TEXT.expand(size, -1), attention.expand(size, -1), frozen.expand(size, -1))
    terms = objective.loss(denoiser, batch, LogLinear(), _noise())
    yield Finding(float((terms.counted & ~batch.open).sum()), 0, "positions counted that are not open")
    yield Finding(float(terms.nelbo[~batch.open].abs().sum()), 0, "nats where nothing is counted")
    touched = (denoiser.calls[0] != batch.input_ids)[~batch.open].sum()
    yield Finding(float(touched), 0, "tokens corrupted that are frozen or pads")


class _Learning:
    """A table whose logits could learn, and a planner that says `scale` times what the table's own says."""

    def __init__(self, table: Any) -> None:
        self.table, self.config = table, table.config
        self.logits = table.logits.requires_grad_()
        self.scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        self.hidden, self.head = table.hidden, table.head

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """The log-odds [N] of rows [N, V]."""
        return self.scale * self.table.plan(rows, log_top)


def _noise() -> Noise:
    return Noise(RATES, torch.linspace(0.001, 0.999, len(RATES) * 3).view(3, -1).T)


def _surprise(denoiser: Watched) -> Tensor:
    """[B, L] by the definition, at what a denoiser was asked."""
    z, alpha = denoiser.calls[0], denoiser.alphas[0]
    assert alpha is not None
    p = exact.log_conditionals(denoiser.denoiser, z, alpha.double()).exp()
    right = p.argmax(dim=-1) == TEXT
    chance = torch.sigmoid(odds(p))
    return -torch.where(right, chance, 1 - chance).log() * (z == MASK)
