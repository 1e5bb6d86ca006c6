"""SUBS: the Rao-Blackwellised bound, in continuous time (eq. 10, 11), in T steps (eq. 8) and by mask count."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from unmask.models.config import Denoiser, DenoiserConfig
from unmask.models.cross_entropy import weighted_cross_entropy
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective, hidden_states, time_grid
from unmask.process import MAX_STEPS, Batch, reveal_probability, sample_mask, sample_mask_of_size
from unmask.schedules import MIN_TIME, Schedule


class Subs(Objective):
    """The bound of MDLM, a weighted masked-language-modelling loss.

    `steps=None`: w(t) = -alpha'/(1 - alpha) times the cross-entropy of masked tokens, t uniform (eq. 10, 11).

    `steps=T`: the bound of the T-step process (eq. 8), estimated at one random t = i/T with the weight
    T (alpha_s - alpha_t)/(1 - alpha_t). Reconstruction and prior are zero: z_0 = x is carried over, and alpha(1) = 0.

    `weight="flat"` trains on the unweighted cross-entropy of masked tokens. Without the factor w(t) its gradient has
    far less variance. The reported number is still the bound.
    """

    name: Literal["subs"] = "subs"
    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    weight: Literal["bound", "flat"] = "bound"

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        if self.steps is None:
            mask_rate = schedule.mask_rate(noise.t)
            weight = schedule.weight(noise.t)  # eq. 10
        else:
            s, t = time_grid(noise.t, self.steps)
            mask_rate = schedule.mask_rate(t)
            weight = self.steps * reveal_probability(schedule.mask_rate(s), mask_rate)  # eq. 8
        mask_rate, weight = mask_rate.float(), weight.float()
        return Corruption.of(sample_mask(batch, mask_rate, noise.u), mask_rate, weight)

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        return diffusion_loss(denoiser, batch, corruption, flat=self.weight == "flat")

    def estimators(self) -> dict[str, Objective]:
        return {"mask-count": MaskCount(), "continuous": ContinuousSubs()}


class ContinuousSubs(Subs):
    """`Subs` in continuous time with a mask rate of u^2 at a uniform u, which keeps the variance finite.

    At a uniform t the loss has infinite variance if the mask rate vanishes no faster than t, as that of log-linear
    does. Here t is the time at which the mask rate is u^2, and the weight has the factor dt/du, so the expectation is
    the same. Their product is 2/u for every schedule whose weight is right; a wrong one makes the estimators disagree.
    """

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        u = noise.t.double().clamp_min(MIN_TIME)
        with torch.enable_grad():
            t = schedule.time_at(u.square()).requires_grad_()
            mask_rate = schedule.mask_rate(t)
            (slope,) = torch.autograd.grad(mask_rate.sum(), t)
        weight = (schedule.weight(t.detach()) * 2.0 * u / slope).float()
        mask_rate = mask_rate.detach().float()
        return Corruption.of(sample_mask(batch, mask_rate, noise.u), mask_rate, weight)


class MaskCount(Objective):
    """The mask-count form: draw n uniformly from 1..L, mask n of the L target tokens, and weight the loss by L/n.

    Its expectation equals eq. 11 and its variance is lower. It is the average over all orders of an any-order
    autoregressive likelihood. A conditioned denoiser receives a mask rate 1 - alpha ~ Beta(n, L - n + 1).
    """

    name: Literal["mask-count"] = "mask-count"

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        length = batch.target_mask.sum(dim=1)
        count = torch.ceil(noise.t * length).long().clamp_min(1).minimum(length)
        masked, mask_rate = sample_mask_of_size(batch, count, noise.u)
        return Corruption.of(masked, mask_rate, length / count.clamp_min(1))

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        return diffusion_loss(denoiser, batch, corruption)

    def estimators(self) -> dict[str, Objective]:
        return Subs().estimators()


def diffusion_loss(denoiser: Denoiser, batch: Batch, corruption: Corruption, flat: bool = False) -> LossTerms:
    """weight * -log x_theta(x) at masked tokens, the only non-zero term of SUBS; `flat` trains without the weight.

    Zero-masking: the head has no output for the mask token. Carry-over: visible tokens are not predicted at all, and
    only masked rows are projected to the vocabulary.
    """
    assert corruption.weight is not None
    hidden_BLD = hidden_states(denoiser, batch, corruption)
    weights_N = corruption.row_mask.to(torch.float32) if flat else corruption.row_weight
    loss, nll_N = weighted_cross_entropy(denoiser, hidden_BLD, corruption.rows, batch.input_ids, weights_N)
    nll_BL = corruption.scatter(nll_N)
    return LossTerms.diffusion_only(corruption.weight[:, None] * nll_BL, nll_BL, loss, batch.target_mask, corruption)
