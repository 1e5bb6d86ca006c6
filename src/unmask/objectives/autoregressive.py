"""AR: the exact left-to-right likelihood, for the causal twin."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from unmask.models.config import Denoiser, DenoiserConfig
from unmask.models.cross_entropy import weighted_cross_entropy
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective
from unmask.process import Batch
from unmask.schedules import Schedule


class AR(Objective):
    """-log p(x_l | x_<l) at every open position. The noise and the schedule are not looked at.

    Every sequence starts with the network's begin token, so the first token is predicted and counted too; a network
    without one (`bos_token_id=None`, as in the published weights) cannot predict it, and it is not counted.
    """

    name: Literal["ar"] = "ar"
    causal: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        return Corruption.of(self.counted(batch, config))

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        hidden = self._rows_before(denoiser, batch)
        weights = corruption.row_mask.to(torch.float32)
        trained, nll_N = weighted_cross_entropy(denoiser, hidden, corruption.rows, batch.input_ids, weights)
        nll = corruption.scatter(nll_N)
        zero = torch.zeros_like(nll)
        return LossTerms(zero, nll, zero, corruption.predicted, nll, trained)

    @staticmethod
    def _rows_before(denoiser: Denoiser, batch: Batch) -> Tensor:
        """[B, L, D] rows that predict the tokens at their own places."""
        ids = batch.input_ids
        bos: int | None = getattr(denoiser.config, "bos_token_id", None)
        if bos is None:
            return denoiser.hidden(ids, attention_mask=batch.key_padding_mask).roll(1, dims=1)
        before = torch.cat([torch.full_like(ids[:, :1], bos), ids[:, :-1]], dim=1)
        return denoiser.hidden(before, attention_mask=batch.key_padding_mask)

    def counted(self, batch: Batch, config: DenoiserConfig) -> Tensor:
        if getattr(config, "bos_token_id", None) is not None:
            return batch.target_mask
        return batch.target_mask & (torch.arange(batch.target_mask.shape[1], device=batch.target_mask.device) > 0)
