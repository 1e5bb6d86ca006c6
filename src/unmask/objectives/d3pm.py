"""D3PM with an absorbing state, in T steps, with the two Rao-Blackwellisation steps of the paper as switches.

Table 8 of the paper reads: both on is SUBS in discrete time (eq. 43), carry-over off adds the reconstruction term
(eq. 41), zero-masking off as well lets the mask token into the softmax (eq. 39).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from unmask.models.config import Denoiser, DenoiserConfig
from unmask.models.cross_entropy import Reduce, cross_entropy, reduce_rows
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective, grid, rows_of_masked
from unmask.process import MAX_STEPS, Batch, sample_mask
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
        s, t = grid(noise.t, self.steps)
        rate_s, rate_t = schedule.mask_rate(s), schedule.mask_rate(t)
        return Corruption.of(sample_mask(batch, rate_t, noise.u), rate_t, mask_rate_s=rate_s)

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        log_x, log_m = self._log_probabilities(denoiser, batch, corruption)
        rate_s, rate_t = corruption.mask_rate_s, corruption.mask_rate
        assert rate_s is not None
        assert rate_t is not None
        row = corruption.rows // corruption.predicted.shape[1]
        diffusion = corruption.scatter(self.steps * step_divergence(log_x, log_m.exp(), rate_s[row], rate_t[row]))
        reconstruction = self._reconstruction(denoiser, batch)
        return LossTerms(
            diffusion=diffusion,
            reconstruction=reconstruction,
            prior=torch.zeros_like(diffusion),
            counted=batch.target_mask,
            cross_entropy=corruption.scatter(-log_x),
            loss=diffusion.sum() + reconstruction.sum(),
            masked=corruption.predicted,
            mask_rate=rate_t,
        )

    def _log_probabilities(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> tuple[Tensor, Tensor]:
        """[N], [N]: log x_theta(x) and log x_theta(m) at the masked rows; the second is -inf under zero-masking."""
        mask_token_id = denoiser.config.mask_token_id

        def reduce(logits: Tensor, targets: Tensor) -> Tensor:
            log_p = logits.log_softmax(-1)
            return torch.stack([log_p.gather(1, targets[:, None])[:, 0], log_p[:, mask_token_id]], 1)

        hidden = rows_of_masked(denoiser, batch, corruption)
        both = self._reduced(denoiser, hidden, batch, corruption.rows, reduce)
        return both[:, 0], both[:, 1]

    def _reconstruction(self, denoiser: Denoiser, batch: Batch) -> Tensor:
        """[B, L] -log <x_theta(x), x> with the clean sequence as input at t = 0 (eq. 41); carry-over makes it 0."""
        shape, device = batch.input_ids.shape, batch.input_ids.device
        if self.carry_over:
            return torch.zeros(shape, device=device)
        hidden = denoiser.hidden(
            batch.input_ids, alpha=torch.ones(shape[0], device=device), attention_mask=batch.key_padding_mask
        )
        everywhere = torch.arange(shape.numel(), device=device)
        nll = self._reduced(denoiser, hidden, batch, everywhere, cross_entropy).view(shape)
        return torch.where(batch.target_mask, nll, torch.zeros_like(nll))

    def _reduced(self, denoiser: Denoiser, hidden: Tensor, batch: Batch, rows: Tensor, reduce: Reduce) -> Tensor:
        head = partial(denoiser.head, mask_logit=self.needs_mask_logit)
        chosen, targets = hidden.flatten(0, 1)[rows], batch.input_ids.flatten()[rows]
        return reduce_rows(head, chosen, targets, reduce, denoiser.config.vocab_size)


def step_divergence(log_x: Tensor, mass_on_mask: Tensor, rate_s: Tensor, rate_t: Tensor) -> Tensor:
    """KL of one reverse step at a masked token, eq. 39, for any x_theta; at a visible token it is 0.

    `log_x` [N] log x_theta(x); `mass_on_mask` [N] x_theta(m), written a below; rates are 1 - alpha_s and 1 - alpha_t.
    """
    alpha_s, alpha_t = 1.0 - rate_s, 1.0 - rate_t
    reveal, stay = (rate_t - rate_s) / rate_t, rate_s / rate_t
    log_norm = torch.log(alpha_t * mass_on_mask + rate_t) - torch.log(rate_t)
    # at s = 0 `stay` is 0: its logarithm only has to be finite, in the backward pass too
    above_zero = torch.where(rate_s > 0, rate_s, 1.0)
    log_stay = torch.log(alpha_s * mass_on_mask + above_zero) - torch.log(above_zero)
    return reveal * (log_norm - log_x) + stay * (log_norm - log_stay)
