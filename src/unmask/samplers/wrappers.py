"""A denoiser as the sequences of one canvas see it: what else is known about a position travels along in its row.

`hidden` adds columns to the rows, and `head` reads them, so that whoever walks a canvas need not know of either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class DenoiserWrapper(ABC):
    """A denoiser that treats the sequences of a canvas each in its own way."""

    def __init__(self, denoiser: Any) -> None:
        self.denoiser = denoiser

    @property
    def config(self) -> Any:
        """Sizes and the mask token."""
        return self.denoiser.config

    @property
    def device(self) -> torch.device:
        """Where the denoiser computes."""
        return self.denoiser.device

    @property
    def fused(self) -> bool:
        """Whether the denoiser's work is compiled."""
        return getattr(self.denoiser, "fused", False)

    @abstractmethod
    def of_rows(self, rows: Tensor) -> DenoiserWrapper:
        """What some sequences [B'] of the canvas see."""

    @abstractmethod
    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Ids [B, L] of the canvas's sequences to rows [B, L, D'] that `head` takes."""

    @abstractmethod
    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at positions [B, K] of each sequence alone, [B, K, D'], for less work where the denoiser can."""

    @abstractmethod
    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Rows [..., D'] to logits [..., V]."""

    @abstractmethod
    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """[...] what the denoiser's planner says of rows [..., D'] whose most likely tokens have these log-chances."""


def seen_by(denoiser: Any, rows: Tensor) -> Any:
    """A denoiser, of which only some sequences [B'] of the canvas are asked."""
    return denoiser.of_rows(rows) if isinstance(denoiser, DenoiserWrapper) else denoiser


def hidden_at(denoiser: Any, input_ids: Tensor, positions: Tensor, **told: Any) -> Tensor:
    """[B, K, D] the hidden rows of any denoiser at positions [B, K] of ids [B, L]."""
    if hasattr(denoiser, "hidden_at"):
        return denoiser.hidden_at(input_ids, positions, **told)
    return denoiser.hidden(input_ids, **told).take_along_dim(positions[..., None], dim=1)


class WithoutEnd(DenoiserWrapper):
    """No EOS where `closed` [B, L]: a text goes on there, and what is known behind would be cut off."""

    def __init__(self, denoiser: Any, closed: Tensor, end: int) -> None:
        super().__init__(denoiser)
        self.closed = closed
        self.end = end

    def of_rows(self, rows: Tensor) -> WithoutEnd:
        return WithoutEnd(seen_by(self.denoiser, rows), self.closed[rows], self.end)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        rows = self.denoiser.hidden(input_ids, alpha=alpha, attention_mask=attention_mask)
        return torch.cat([rows, self.closed[..., None].to(rows.dtype)], dim=-1)

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        rows = hidden_at(self.denoiser, input_ids, positions, alpha=alpha, attention_mask=attention_mask)
        return torch.cat([rows, self.closed.gather(1, positions)[..., None].to(rows.dtype)], dim=-1)

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        logits = self.denoiser.head(rows[..., :-1], mask_logit)
        shut = torch.arange(logits.shape[-1], device=logits.device) == self.end
        return logits.masked_fill((rows[..., -1:] > 0) & shut, -torch.inf)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        return self.denoiser.plan(rows[..., :-1], log_top)


class GoesOn(DenoiserWrapper):
    """Rows [B, L] of texts that may go on: behind what is known of them the network sees masks, up to its `length`."""

    def __init__(self, denoiser: Any, length: int) -> None:
        super().__init__(denoiser)
        self.length = length

    def of_rows(self, rows: Tensor) -> GoesOn:
        return GoesOn(seen_by(self.denoiser, rows), self.length)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        return self.denoiser.hidden(self._shown(input_ids, attention_mask), alpha=alpha)[:, : input_ids.shape[1]]

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        return hidden_at(self.denoiser, self._shown(input_ids, attention_mask), positions, alpha=alpha)

    def _shown(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        mask, width = self.config.mask_token_id, input_ids.shape[1]
        shown = input_ids if attention_mask is None else input_ids.masked_fill(~attention_mask.bool(), mask)
        return torch.nn.functional.pad(shown, (0, max(0, self.length - width)), value=mask)

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        return self.denoiser.head(rows, mask_logit)

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        return self.denoiser.plan(rows, log_top)
