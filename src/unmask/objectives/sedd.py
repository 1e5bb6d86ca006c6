"""SEDD with an absorbing state: score entropy, and the conversions between scores and x_theta.

A raw output f becomes log s = f - log(e^sigma - 1) - log(V - 1) with e^sigma - 1 = (1 - alpha)/alpha. Inserted into the
score entropy sigma'(t) [sum_y s_y - r log s_x + r (log r - 1)] with r = alpha/(1 - alpha) and sigma' r = w(t), it gives
w(t) [mean_y e^f_y - (f_x - log(V - 1)) - 1], in which alpha has cancelled. This is the form computed here.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unmask.models.config import Denoiser, DenoiserConfig
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective, hidden_states, reduce_logits
from unmask.process import Batch, sample_mask
from unmask.schedules import Schedule


class SEDD(Objective):
    """Denoising score entropy of the absorbing process in continuous time; 0 at visible tokens."""

    name: Literal["sedd"] = "sedd"
    predicts_scores: ClassVar[bool] = True

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        mask_rate = schedule.mask_rate(noise.t)
        return Corruption.of(sample_mask(batch, mask_rate, noise.u), mask_rate, schedule.weight(noise.t))

    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        hidden_BLD = hidden_states(denoiser, batch, corruption)
        log_sum_N, f_x_N = reduce_logits(denoiser, hidden_BLD, batch, corruption.rows, _log_sum_and_target).unbind(1)
        log_others = math.log(denoiser.config.vocab_size - 1)
        log_mean_N = log_sum_N - log_others
        score_entropy = corruption.scatter(corruption.row_weight * (log_mean_N.exp() - (f_x_N - log_others) - 1.0))
        nll_BL = corruption.scatter(log_sum_N - f_x_N)
        return LossTerms.diffusion_only(score_entropy, nll_BL, score_entropy.sum(), batch.target_mask, corruption)


def _log_sum_and_target(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """[N, 2]: log sum_y e^f_y over all tokens except the mask, and f at the target."""
    return torch.stack([logits_NV.logsumexp(-1), logits_NV.gather(1, targets_N[:, None])[:, 0]], 1)


def log_score(f: Tensor, alpha: Tensor, vocab_size: int) -> Tensor:
    """log s(y) [..., V] of a raw network output f; `alpha` broadcasts."""
    return f + torch.logit(alpha) - math.log(vocab_size - 1)
