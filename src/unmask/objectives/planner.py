"""The planner's objective: whether a frozen denoiser gets a masked token right, foretold from what it sees."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.models.config import DenoiserConfig
from unmask.models.cross_entropy import reduce_rows
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective, rows_of_masked
from unmask.objectives.subs import Subs
from unmask.process import Batch, sample_mask
from unmask.registry import field
from unmask.schedules import Schedule


class PlannerPrediction(NamedTuple):
    """Of each row that was asked about [N]: the planner's log-odds of being right, the log-probability of the token
    that the denoiser finds most likely, and whether that token is the true one."""

    log_odds: Tensor
    log_top: Tensor
    right: Tensor


class Planner(Objective):
    """The cross-entropy of "the most likely token is the true one" at masked positions, by the planner of the network.

    It is no bound on a text: positions that are not masked are not counted, and the denoiser is left as it is. `of` is
    the objective that the denoiser was trained on, by which it is still judged.
    """

    name: Literal["planner"] = "planner"
    trains_planner: ClassVar[bool] = True
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
        said = self.predict(denoiser, batch, corruption)
        nll_N = F.binary_cross_entropy_with_logits(said.log_odds, said.right.float(), reduction="none")
        trained = (nll_N * corruption.row_mask).sum()
        nll = corruption.scatter(nll_N.detach())
        zero, masked = torch.zeros_like(nll), corruption.predicted
        return LossTerms(nll, zero, zero, masked, nll, trained, masked, corruption.mask_rate)

    def predict(self, denoiser: Any, batch: Batch, corruption: Corruption) -> PlannerPrediction:
        """What the planner says of each row of a corruption, and what is true.

        Whatever the trunk computes in, head and planner are asked in float32, as samplers ask them.
        """
        with torch.no_grad():
            rows = rows_of_masked(denoiser, batch, corruption).flatten(0, 1)[corruption.rows]
        rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        true = batch.input_ids.flatten()[corruption.rows]
        with torch.autocast(rows.device.type, enabled=False):
            log_top, right = _outcomes(denoiser, rows, true)
            return PlannerPrediction(denoiser.plan(rows, log_top), log_top, right > 0)


@torch.no_grad()
def _outcomes(denoiser: Any, rows_ND: Tensor, true_N: Tensor) -> tuple[Tensor, Tensor]:
    """[N] twice, of all rows."""
    log_top, right = reduce_rows(denoiser.head, rows_ND, true_N, _outcome, denoiser.config.vocab_size).unbind(dim=1)
    return log_top, right


def _outcome(logits_NV: Tensor, true_N: Tensor) -> Tensor:
    """[N, 2] the log-probability of the most likely token, and 1 where it is the true one."""
    top = logits_NV.log_softmax(dim=-1).max(dim=-1)
    return torch.stack([top.values, (top.indices == true_N).to(logits_NV.dtype)], dim=1)
