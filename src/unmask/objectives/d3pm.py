"""D3PM with an absorbing state, in T steps, with the two Rao-Blackwellisation steps of the paper as switches.

In Table 8 of the paper both switches on is SUBS in discrete time (eq. 43). Carry-over off adds the reconstruction loss
(eq. 41). Zero-masking off as well puts the mask token into the softmax (eq. 39).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.models.config import Denoiser, DenoiserConfig
from unmask.models.cross_entropy import cross_entropy
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective, hidden_states, reduce_logits, time_grid
from unmask.process import MAX_STEPS, Batch, reveal_probability, sample_mask
from unmask.schedules import Schedule


class D3PM(Objective):
    """The T-step bound in three terms. `carry_over=True, zero_masking=True` equals `Subs(steps=T)`."""

    name: Literal["d3pm"] = "d3pm"
    steps: int = Field(default=1000, ge=1, le=MAX_STEPS)
    carry_over: bool = False
    zero_masking: bool = False

    @property
    def needs_mask_logit(self) -> bool:
        return not self.zero_masking

    @property
    def needs_visible_rows(self) -> bool:
        return not self.carry_over

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        s, t = time_grid(noise.t, self.steps)
        rate_s, rate_t = schedule.mask_rate(s), schedule.mask_rate(t)
        weight = (self.steps * reveal_probability(rate_s, rate_t)).float()
        rate_s, rate_t = rate_s.float(), rate_t.float()
        return Corruption.of(sample_mask(batch, rate_t, noise.u), rate_t, weight, rate_s)

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        log_x_N, log_m_N = self._log_probabilities(denoiser, batch, corruption)
        rate_s, rate_t, weight = corruption.mask_rate_s, corruption.mask_rate, corruption.weight
        assert rate_s is not None
        assert rate_t is not None
        assert weight is not None
        row_N = corruption.rows // corruption.predicted.shape[1]
        reveal_N = weight[row_N] / self.steps
        diffusion = corruption.scatter(
            self.steps * self.step_loss(log_x_N, log_m_N.exp(), reveal_N, rate_s[row_N], rate_t[row_N])
        )
        reconstruction = self._reconstruction_loss(denoiser, batch)
        return LossTerms(
            diffusion=diffusion,
            reconstruction=reconstruction,
            prior=torch.zeros_like(diffusion),
            counted=batch.target_mask,
            cross_entropy=corruption.scatter(-log_x_N),
            loss=diffusion.sum() + reconstruction.sum(),
            masked=corruption.predicted,
            mask_rate=rate_t,
        )

    def step_loss(
        self, log_x: Tensor, mask_probability: Tensor, reveal: Tensor, rate_s: Tensor, rate_t: Tensor
    ) -> Tensor:
        """[N] the KL of one reverse step at masked tokens; see `reverse_step_kl`. Ablations override it."""
        return reverse_step_kl(log_x, mask_probability, reveal, rate_s, rate_t)

    def _log_probabilities(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> tuple[Tensor, Tensor]:
        """[N], [N]: log x_theta(x) and log x_theta(m) at the masked rows; the second is -inf under zero-masking."""
        mask_token_id = denoiser.config.mask_token_id

        def reduce(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
            log_p_NV = logits_NV.log_softmax(-1)
            return torch.stack([log_p_NV.gather(1, targets_N[:, None])[:, 0], log_p_NV[:, mask_token_id]], 1)

        hidden_BLD = hidden_states(denoiser, batch, corruption)
        both_N2 = reduce_logits(denoiser, hidden_BLD, batch, corruption.rows, reduce, self.needs_mask_logit)
        return both_N2[:, 0], both_N2[:, 1]

    def _reconstruction_loss(self, denoiser: Denoiser, batch: Batch) -> Tensor:
        """[B, L] -log <x_theta(x), x> with the clean sequence as input at t = 0 (eq. 41); 0 under carry-over."""
        shape, device = batch.input_ids.shape, batch.input_ids.device
        if self.carry_over:
            return torch.zeros(shape, device=device)
        alpha = torch.ones(shape[0], device=device)
        hidden_BLD = denoiser.hidden(batch.input_ids, alpha=alpha, attention_mask=batch.key_padding_mask)
        all_rows = torch.arange(shape.numel(), device=device)
        nll_N = reduce_logits(denoiser, hidden_BLD, batch, all_rows, cross_entropy, self.needs_mask_logit)
        nll_BL = nll_N.view(shape)
        return torch.where(batch.target_mask, nll_BL, torch.zeros_like(nll_BL))


def reverse_step_kl(log_x: Tensor, mask_probability: Tensor, reveal: Tensor, rate_s: Tensor, rate_t: Tensor) -> Tensor:
    """KL of one reverse step at a masked token, eq. 39, for any x_theta; it is 0 at a visible token.

    `log_x` [N] is log x_theta(x), `mask_probability` [N] is x_theta(m), `reveal` is (alpha_s - alpha_t)/(1 - alpha_t),
    and the rates are 1 - alpha_s and 1 - alpha_t.
    """
    alpha_s, alpha_t = 1.0 - rate_s, 1.0 - rate_t
    log_norm = torch.log(alpha_t * mask_probability + rate_t) - torch.log(rate_t)
    # at s = 0 a token never stays masked: the logarithm only has to be finite, also in the backward pass
    positive_rate_s = torch.where(rate_s > 0, rate_s, 1.0)
    log_stay = torch.log(alpha_s * mask_probability + positive_rate_s) - torch.log(positive_rate_s)
    return reveal * (log_norm - log_x) + rate_s / rate_t * (log_norm - log_stay)
