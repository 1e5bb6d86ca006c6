"""The objective of a planner, which predicts whether a denoiser with frozen weights gets a masked token right."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.rows import POSITIONS
from unmask.models.config import DenoiserConfig
from unmask.models.cross_entropy import reduce_rows
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective, hidden_states
from unmask.objectives.subs import Subs
from unmask.process import Batch, sample_mask
from unmask.registry import field
from unmask.schedules import Schedule


class PlannerPrediction(NamedTuple):
    """At each row [N]: the planner's log-odds of being right, the log-probability of the denoiser's most likely token,
    and whether that token is the true one."""

    log_odds: Tensor
    log_top: Tensor
    right: Tensor


class Planner(Objective):
    """Binary cross-entropy of "the denoiser's most likely token is the true one" at masked positions.

    It is not a bound on the text: only masked positions are counted, and the denoiser does not change. `of` is the
    objective that the denoiser was trained on and is evaluated by.
    """

    name: Literal["planner"] = "planner"
    is_bound: ClassVar[bool] = False
    trains_planner: ClassVar[bool] = True
    denominator: ClassVar[str] = POSITIONS
    of: field("objective") = Subs()  # type: ignore[valid-type]

    @property
    def needs_mask_logit(self) -> bool:
        return self.of.needs_mask_logit  # type: ignore[attr-defined]

    @property
    def evaluation_objective(self) -> Objective:
        return self.of  # type: ignore[return-value]

    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        mask_rate = schedule.mask_rate(noise.t)
        return Corruption.of(sample_mask(batch, mask_rate, noise.u), mask_rate)

    def terms(self, denoiser: Any, batch: Batch, corruption: Corruption) -> LossTerms:
        prediction = self.predict(denoiser, batch, corruption)
        nll_N = F.binary_cross_entropy_with_logits(prediction.log_odds, prediction.right.float(), reduction="none")
        nll_BL = corruption.scatter(nll_N.detach())
        loss = (nll_N * corruption.row_mask).sum()
        return LossTerms.diffusion_only(nll_BL, nll_BL, loss, corruption.predicted, corruption)

    def predict(self, denoiser: Any, batch: Batch, corruption: Corruption) -> PlannerPrediction:
        """The planner's predictions and the true outcomes at the rows of a corruption.

        Head and planner compute in float32 whatever the dtype of the trunk, as samplers do.
        """
        with torch.no_grad():
            rows_ND = hidden_states(denoiser, batch, corruption).flatten(0, 1)[corruption.rows]
        rows_ND = rows_ND.to(torch.promote_types(rows_ND.dtype, torch.float32))
        targets_N = batch.input_ids.flatten()[corruption.rows]
        with torch.autocast(rows_ND.device.type, enabled=False):
            with torch.no_grad():
                outcome_N2 = reduce_rows(denoiser.head, rows_ND, targets_N, _outcome, denoiser.config.vocab_size)
            log_top_N, right_N = outcome_N2.unbind(dim=1)
            return PlannerPrediction(denoiser.plan(rows_ND, log_top_N), log_top_N, right_N > 0)


def _outcome(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """[N, 2] the log-probability of the most likely token, and 1 where it is the true one."""
    top = logits_NV.log_softmax(dim=-1).max(dim=-1)
    return torch.stack([top.values, (top.indices == targets_N).to(logits_NV.dtype)], dim=1)
