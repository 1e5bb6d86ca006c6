"""A batch: token ids, which of them are real, and which of them are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """`input_ids` [B, L] clean tokens; `attention_mask` [B, L] False at pads; `frozen` [B, L] True at given tokens.

    Frozen positions are never corrupted, predicted nor counted: prompts, translation sources, puzzle givens.
    """

    input_ids: Tensor
    attention_mask: Tensor
    frozen: Tensor
    has_pads: bool = True

    @classmethod
    def of(cls, input_ids: Tensor, attention_mask: Tensor | None = None, frozen: Tensor | None = None) -> Batch:
        """Fill in what is missing: everything is real, nothing is frozen. Looks at the mask: call it on the CPU."""
        has_pads = attention_mask is not None and not bool(attention_mask.all())
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
        if frozen is None:
            frozen = torch.zeros_like(input_ids, dtype=torch.bool)
        return cls(input_ids, attention_mask.bool(), frozen.bool(), has_pads)

    @property
    def open(self) -> Tensor:
        """[B, L] the positions that are corrupted, predicted and counted."""
        return self.attention_mask & ~self.frozen

    @property
    def keys(self) -> Tensor | None:
        """The attention mask where there is a pad to hide, else None: attention without a mask is faster."""
        return self.attention_mask if self.has_pads else None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=True))

    def each(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor put through a function: moved, pinned."""
        return Batch(function(self.input_ids), function(self.attention_mask), function(self.frozen), self.has_pads)
