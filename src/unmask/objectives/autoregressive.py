"""AR: the exact left-to-right likelihood of the autoregressive model."""

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
    """-log p(x_l | x_<l) at every target position; noise and schedule are not used.

    Every sequence starts with the network's `bos_token_id`, so the first token is predicted and counted too. A network
    without one (`bos_token_id=None`, as in the published weights) cannot predict the first token, which is not counted.
    """

    name: Literal["ar"] = "ar"
    causal: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        return Corruption.of(self.counted(batch, config))

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        ids_BL, bos = batch.input_ids, getattr(denoiser.config, "bos_token_id", None)
        # row l of `hidden` predicts token l
        if bos is None:
            hidden_BLD = denoiser.hidden(ids_BL, attention_mask=batch.key_padding_mask).roll(1, dims=1)
        else:
            shifted_BL = torch.cat([torch.full_like(ids_BL[:, :1], bos), ids_BL[:, :-1]], dim=1)
            hidden_BLD = denoiser.hidden(shifted_BL, attention_mask=batch.key_padding_mask)
        weights_N = corruption.row_mask.to(torch.float32)
        loss, nll_N = weighted_cross_entropy(denoiser, hidden_BLD, corruption.rows, ids_BL, weights_N)
        nll_BL = corruption.scatter(nll_N)
        zero = torch.zeros_like(nll_BL)
        return LossTerms(
            diffusion=zero,
            reconstruction=nll_BL,
            prior=zero,
            counted=corruption.predicted,
            cross_entropy=nll_BL,
            loss=loss,
        )

    def counted(self, batch: Batch, config: DenoiserConfig) -> Tensor:
        targets = batch.target_mask
        if getattr(config, "bos_token_id", None) is not None:
            return targets
        return targets & (torch.arange(targets.shape[1], device=targets.device) > 0)
