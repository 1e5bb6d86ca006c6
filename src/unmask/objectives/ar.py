"""AR: the exact left-to-right likelihood, for the causal twin."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.losses import cross_entropy, reduce_rows, scatter_rows
from unmask.models.protocol import Denoiser, DenoiserConfig
from unmask.objectives.base import LossTerms, Noise, Objective
from unmask.schedules import Schedule


class AR(Objective):
    """-log p(x_l | x_<l) at every open position. The noise and the schedule are not looked at.

    Every sequence starts with the network's begin token, so the first token is predicted and counted too; a network
    without one (`bos_token_id=None`, as in the published weights) cannot predict it, and it is not counted.
    """

    name: Literal["ar"] = "ar"
    causal: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def loss(self, denoiser: Denoiser, batch: Batch, schedule: Schedule, noise: Noise) -> LossTerms:
        ids, counted = batch.input_ids, self.counted(batch, denoiser.config)
        bos: int | None = getattr(denoiser.config, "bos_token_id", None)
        if bos is None:
            hidden = denoiser.hidden(ids, attention_mask=batch.keys).roll(1, dims=1)
        else:
            before = torch.cat([torch.full_like(ids[:, :1], bos), ids[:, :-1]], dim=1)
            hidden = denoiser.hidden(before, attention_mask=batch.keys)
        nll = reduce_rows(denoiser.head, hidden[counted], ids[counted], cross_entropy, denoiser.config.vocab_size)
        nll_BL = scatter_rows(nll, counted)
        zero = torch.zeros_like(nll_BL)
        return LossTerms(zero, nll_BL, zero, counted, nll_BL)

    def counted(self, batch: Batch, config: DenoiserConfig) -> Tensor:
        if getattr(config, "bos_token_id", None) is not None:
            return batch.open
        return batch.open & (torch.arange(batch.open.shape[1], device=batch.open.device) > 0)
