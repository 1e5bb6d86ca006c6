"""BERT's pre-training: the cross-entropy of chosen tokens, most of which are masked, some replaced and some kept."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator

from unmask.models.config import Denoiser, DenoiserConfig
from unmask.models.cross_entropy import cross_entropy
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective, hidden_states, reduce_logits
from unmask.objectives.subs import Subs
from unmask.process import Batch, sample_mask
from unmask.schedules import Schedule


class MLM(Objective):
    """Masked language modelling as in BERT (arXiv 1810.04805, section 3.1).

    A share `rate` of the tokens is chosen and predicted; of these a share `masked` becomes the mask token, a share
    `random` a token drawn uniformly from the vocabulary, and the rest is kept. All tokens take part in the softmax, the
    mask token too, so that the weights suit programs that know nothing of zero-masking.

    The training loss is the mean cross-entropy of the chosen tokens, which is not a bound on the likelihood of a text.
    Validation and checkpoints therefore use the bound of masked diffusion, `subs`, which is valid for any denoiser and
    high for one that has never seen high mask rates. Training does not use the schedule.
    """

    name: Literal["mlm"] = "mlm"
    is_bound: ClassVar[bool] = False
    rate: float = Field(default=0.15, gt=0, lt=1)
    masked: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="after")
    def _shares_fit(self) -> MLM:
        if self.masked + self.random > 1:
            raise ValueError(f"objective.masked + objective.random must be at most 1, got {self.masked + self.random}.")
        return self

    @property
    def needs_mask_logit(self) -> bool:
        return True

    @property
    def evaluation_objective(self) -> Objective:
        return Subs()

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        mask_rate = torch.full_like(noise.t, self.rate, dtype=torch.float32)
        chosen_BL = sample_mask(batch, mask_rate, noise.u)
        # given that a token is chosen, u / rate is uniform, and so is its place within each of the three shares
        u_BL = noise.u / self.rate
        # the time, which has no other use here, shifts the tokens of a row, so that all are equally likely
        place_BL = (u_BL - self.masked) / max(self.random, 1e-9)
        shift_B1 = (noise.t.double() * config.vocab_size).long()[:, None]
        random_BL = ((place_BL.double() * config.vocab_size).long() + shift_B1) % config.vocab_size
        replaced_BL = torch.where(u_BL < self.masked + self.random, random_BL, batch.input_ids)
        replaced_BL = replaced_BL.masked_fill(u_BL < self.masked, config.mask_token_id)
        z_BL = torch.where(chosen_BL, replaced_BL, batch.input_ids)
        return replace(Corruption.of(chosen_BL, mask_rate, 1.0 / mask_rate), z=z_BL)

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        hidden_BLD = hidden_states(denoiser, batch, corruption)
        nll_N = reduce_logits(denoiser, hidden_BLD, batch, corruption.rows, cross_entropy, mask_logit=True)
        nll_BL = corruption.scatter(nll_N.detach())
        assert corruption.weight is not None
        diffusion, loss = corruption.weight[:, None] * nll_BL, (nll_N * corruption.row_weight).sum()
        return LossTerms.diffusion_only(diffusion, nll_BL, loss, batch.target_mask, corruption)

    def estimators(self) -> dict[str, Objective]:
        return Subs().estimators()
