"""SUBS: the Rao-Blackwellised bound, in continuous time (eq. 10, 11), in T steps (eq. 8) and by mask count."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.models.config import Denoiser, DenoiserConfig
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective, grid, masked_cross_entropy
from unmask.process import MAX_STEPS, Batch, reveal_probability, sample_mask, sample_mask_of_size
from unmask.schedules import Schedule


class Subs(Objective):
    """`steps=None`: w(t) = -alpha'/(1 - alpha) times the cross-entropy of masked tokens, t uniform (eq. 10, 11).

    `steps=T`: the bound of the T-step process, (alpha_s - alpha_t)/(1 - alpha_t) at t = i/T (eq. 8), one i drawn and
    multiplied by T. Reconstruction and prior are zero: z_0 = x is carried over, and alpha(1) = 0.

    `weight="flat"` trains on the plain cross-entropy of masked tokens, whose gradient has far less variance than the
    bound's (no 1/t); what is reported stays the bound.
    """

    name: Literal["subs"] = "subs"
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    weight: Literal["bound", "flat"] = "bound"

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        mask_rate, weight = self._weighted(schedule, noise.t)
        return Corruption.of(sample_mask(batch, mask_rate, noise.u), mask_rate, weight)

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        return subs_terms(denoiser, batch, corruption, flat=self.weight == "flat")

    def estimators(self) -> dict[str, Objective]:
        return {"mask-count": MaskCount(), "continuous": Subs()}

    def _weighted(self, schedule: Schedule, t: Tensor) -> tuple[Tensor, Tensor]:
        """1 - alpha at the drawn time, and what the cross-entropy there is multiplied by."""
        if self.steps is None:
            return schedule.mask_rate(t), schedule.weight(t)
        s, t = grid(t, self.steps)
        mask_rate = schedule.mask_rate(t)
        return mask_rate, self.steps * reveal_probability(schedule.mask_rate(s), mask_rate)


class MaskCount(Objective):
    """n uniform in 1..L of the L open tokens are masked, weight L/n: the number of eq. 11, with less variance.

    It is the average over all orders of an any-order autoregressive likelihood. A conditioned denoiser is told the
    mask rate a count of n comes from, 1 - alpha ~ Beta(n, L - n + 1).
    """

    name: Literal["mask-count"] = "mask-count"

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        length = batch.target_mask.sum(dim=1)
        count = torch.ceil(noise.t * length).long().clamp_min(1).minimum(length)
        masked, mask_rate = sample_mask_of_size(batch, count, noise.u)
        return Corruption.of(masked, mask_rate, length / count.clamp_min(1))

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        return subs_terms(denoiser, batch, corruption)

    def estimators(self) -> dict[str, Objective]:
        return Subs().estimators()


def subs_terms(denoiser: Denoiser, batch: Batch, corruption: Corruption, flat: bool = False) -> LossTerms:
    """Weighted cross-entropies of masked tokens as the terms of a bound; `flat` trains on them without the weights."""
    trained, nll_N = masked_cross_entropy(denoiser, batch, corruption, flat)
    nll = corruption.scatter(nll_N)
    zero = torch.zeros_like(nll)
    assert corruption.weight is not None
    diffusion = corruption.weight[:, None] * nll
    return LossTerms(diffusion, zero, zero, batch.target_mask, nll, trained, corruption.predicted, corruption.mask_rate)
