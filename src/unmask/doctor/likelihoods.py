"""Checks of likelihoods: exact ones by enumeration, against what `unmask score` and `unmask sample` compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.bounds import AGREEMENT, Bound
from unmask.data.cache import Tokens
from unmask.data.rows import Integers, RowBatch
from unmask.data.token_rows import TokenRows
from unmask.doctor.findings import Finding, at_most, not_applicable
from unmask.doctor.network import TOLERANCE
from unmask.doctor.patient import Patient
from unmask.laws import describe, exact
from unmask.laws.exact import AnyOrder
from unmask.likelihood import bound, evaluating
from unmask.objectives.base import Noise, Objective
from unmask.objectives.subs import MaskCount
from unmask.samplers.base import Canvas, sample

OFFSETS, PASSES = 32, 4
ROUNDING = 1e-6
CLOCK = 1e-3
"""A conditioned network sees the clock, which is held as a polynomial: likelihood and bound are known to this share."""
WHICH_CODE = "the code differs from the mathematics: run 'unmask doctor' for the laws and report what it says"


class HeldOpen(TokenRows):
    """A table of one row, of which only the open positions are counted."""

    def __init__(self, ids: Tensor, open_: Tensor) -> None:
        super().__init__(Tokens.of([ids.tolist()]), len(ids), None, None)
        self._frozen = (~open_).numpy()
        self.counted = int(open_.sum())

    def __len__(self) -> int:
        return 1

    def _read(self, rows_B: Integers) -> RowBatch:
        ids_BL = self._ids[None].repeat(len(rows_B), axis=0)
        real_BL = ids_BL >= 0
        return RowBatch(ids_BL, real_BL, 0 * ids_BL, self._frozen[None].repeat(len(rows_B), axis=0))


class Masked:
    """The checks of a masked denoiser. They share one enumeration of its canvases."""

    def __init__(self, patient: Patient) -> None:
        self.patient = patient
        self._made: dict[tuple[str, int], Bound] = {}

    @cached_property
    def exact(self) -> AnyOrder:
        """Likelihood and bound of the text without noise, by the subset recursion."""
        return exact.any_order(self.patient.lm.denoiser, self.patient.ids[None], self.patient.open)

    def bound_is_above_the_likelihood(self) -> Finding:
        """The mean over all orders, enumerated, is not below -log p, enumerated (law 1)."""
        nll, nats = float(self.exact.nll), float(self.exact.bound)
        count = int(self.patient.open.sum())
        size = f"{count} positions open, {self.exact.canvases:,} canvases"
        words = f"-log p = {nll:.4f} exactly, bound {nats:.4f} ({size}); nats by which the bound is below"
        share = CLOCK if self.patient.config.conditioned else ROUNDING
        remedy = "a probability is no number: look at weights and logits"
        return at_most("bound is above the likelihood", nll - nats, share * max(nats, 1.0), words, remedy)

    def mask_count_finds_the_bound(self) -> Finding:
        """The estimator that counts, as `unmask score` runs it, is the enumerated bound but for its noise."""
        nats = float(self.exact.bound)
        made, apart = self._settled("mask-count", MaskCount(), lambda estimate: abs(estimate - nats))
        words = f"{_figure(made)} in {made.draws} draws, the bound {nats:.4f}; standard errors between them"
        return at_most("mask count finds the bound", apart, AGREEMENT, words, WHICH_CODE)

    def estimates_are_above_the_likelihood(self) -> Finding:
        """What `unmask score` prints for this checkpoint is not below -log p by more than its error."""
        name, objective = "estimates are above the likelihood", self.patient.lm.card.objective
        if why := _other_process(objective):
            return not_applicable(name, why)
        nll = float(self.exact.nll)
        estimators = objective.estimators().items()
        made = [self._settled(label, one, lambda estimate: nll - estimate) for label, one in estimators]
        shown = ", ".join(f"{estimate.estimator} {_figure(estimate)}" for estimate, _ in made)
        worst = max(below for _, below in made)
        return at_most(name, worst, AGREEMENT, f"{shown}; standard errors below -log p", WHICH_CODE)

    def _settled(self, label: str, estimator: Objective, off: Callable[[float], float]) -> tuple[Bound, float]:
        """An estimate, and by how many of its standard errors it is `off`. One that looks wrong is drawn once more.

        The 1/t of continuous time has tails so heavy that a sound estimate looks wrong once in two hundred times.
        """
        for seed in (0, 1):
            made = self._estimate(label, estimator, seed)
            errors = off(made.nats) / max(made.mc_stderr, 0.1 * TOLERANCE[self.patient.dtype] * max(made.nats, 1.0))
            if errors <= AGREEMENT:
                break
        return made, errors

    def _estimate(self, label: str, estimator: Objective, seed: int) -> Bound:
        if (label, seed) not in self._made:
            lm, rows = self.patient.lm, HeldOpen(self.patient.ids, self.patient.open)
            options: dict[str, Any] = {"name": label, "seed": seed, "offsets": OFFSETS, "passes": PASSES}
            self._made[label, seed] = bound(lm.denoiser, estimator, lm.card.schedule, rows, **options)
        return self._made[label, seed]


def score_is_the_sum_of_conditionals(patient: Patient) -> Finding:
    """One pass over a text gives a causal network the nats of its prefixes, each read alone."""
    ids, open_ = patient.ids[None].to(patient.lm.device), patient.open
    with evaluating(patient.lm.denoiser):
        alone = exact.left_to_right_nll(patient.lm.denoiser, ids, open_)[0]
    scored = _scored(patient, patient.ids)
    counted = open_ & ((torch.arange(len(open_)) > 0) | (patient.config.bos_token_id is not None))
    apart = float((scored - alone).abs()[counted].max())
    words = f"-log p = {float(alone[counted].sum()):.4f} exactly ({int(counted.sum())} positions open)"
    words += "; most nats between one pass and prefixes alone"
    remedy = "a position sees what comes after it: look at the causal mask"
    return at_most("score is the sum of conditionals", apart, _rounding(patient, scored), words, remedy)


def generation_agrees_with_score(patient: Patient) -> Finding:
    """What a causal network writes, with its cache, has the probability that scoring gives it without one."""
    name = "generation agrees with score"
    written = torch.arange(len(patient.ids)) >= max(1, len(patient.ids) - int(patient.open.sum()))
    if not written.any():
        return not_applicable(name, "the text has one token only; give a longer one")
    start = patient.ids.masked_fill(written, patient.config.mask_token_id)[None].to(patient.lm.device)
    done = sample(patient.lm.sampler(), patient.lm.denoiser, Canvas.of(start, patient.config.mask_token_id))
    said = -done.confidence[0].double().log().cpu()
    scored = _scored(patient, done.ids[0].cpu())
    apart = float((said - scored).abs()[written].max())
    words = f"{int(written.sum())} tokens written; most nats between the two at one of them"
    return at_most(name, apart, _rounding(patient, scored), words, "look at the key-value cache and its positions")


def _scored(patient: Patient, ids: Tensor) -> Tensor:
    """[L] nats of a text at every position, by the objective of the card."""
    batch = Batch.of(ids[None]).to(patient.lm.device)
    noise = Noise(torch.full((1,), 0.5), torch.full((1, len(ids)), 0.5))
    with evaluating(patient.lm.denoiser):
        terms = patient.lm.card.objective.loss(patient.lm.denoiser, batch, patient.lm.card.schedule, noise)
    return terms.nelbo[0].double().cpu()


def _rounding(patient: Patient, nats: Tensor) -> float:
    return TOLERANCE[patient.dtype] * max(1.0, float(nats.max()))


def _other_process(objective: Objective) -> str:
    """Why the bound of an objective is not one of generation in uniform order, one position at a time; '' if it is."""
    estimators = objective.estimators().values()
    if any(one.needs_mask_logit or one.needs_visible_rows for one in estimators):
        return f"{describe(objective)} bounds another process, with the mask in its softmax or visible tokens rewritten"
    if any(getattr(one, "steps", None) is not None for one in estimators):
        return f"{describe(objective)} bounds a process of a few steps, in which tokens are written together"
    return ""


def _figure(made: Bound) -> str:
    return f"{made.nats:.4f} ± {made.mc_stderr:.4f}"
