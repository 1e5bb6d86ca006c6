"""Guidance without a classifier: the prediction behind the prompt, pushed away from the one without it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unmask.samplers.wrappers import DenoiserWrapper, hidden_at, seen_by


class Guided(DenoiserWrapper):
    """Logits (1 + w) l(prompt) - w l(prompt masked): w = 0 is the denoiser itself.

    `condition` [B, L] are the tokens that are masked for the second prediction. Both are made in one call, of two rows
    a sequence.
    """

    def __init__(self, denoiser: Any, condition: Tensor, weight: float) -> None:
        super().__init__(denoiser)
        self.condition = condition
        self.weight = weight

    def of_rows(self, rows: Tensor) -> Guided:
        return Guided(seen_by(self.denoiser, rows), self.condition[rows], self.weight)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        told = {"alpha": _twice(alpha), "attention_mask": _twice(attention_mask)}
        return _beside(self.denoiser.hidden(self._both(input_ids), **told))

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        told = {"alpha": _twice(alpha), "attention_mask": _twice(attention_mask)}
        return _beside(hidden_at(self.denoiser, self._both(input_ids), torch.cat([positions, positions]), **told))

    def _both(self, input_ids: Tensor) -> Tensor:
        """[2 B, L] the sequences with their prompts, then without."""
        return torch.cat([input_ids, input_ids.masked_fill(self.condition, self.config.mask_token_id)])

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        given, without = (self.denoiser.head(half, mask_logit) for half in rows.chunk(2, dim=-1))
        return torch.where(given.isneginf(), given, given + self.weight * (given - without))

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        return self.denoiser.plan(rows.chunk(2, dim=-1)[0], log_top)


def _beside(rows: Tensor) -> Tensor:
    """[B, ..., 2 D] both predictions of each sequence in one row, of rows [2 B, ..., D]."""
    return torch.cat(rows.chunk(2), dim=-1)


def _twice(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else torch.cat([tensor, tensor])
