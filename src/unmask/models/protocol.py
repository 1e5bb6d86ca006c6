"""What objectives, samplers and bounds ask of a network. Any module with these members is a denoiser."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class DenoiserConfig(Protocol):
    """What a denoiser says about itself."""

    vocab_size: int
    mask_token_id: int
    max_length: int
    conditioned: bool


@runtime_checkable
class Denoiser(Protocol):
    """A network that reads a canvas with masks and predicts the clean tokens, in two steps."""

    @property
    def config(self) -> DenoiserConfig:
        """Sizes and the mask token."""

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Ids [B, L], alpha [B] or None, attention_mask [B, L] or None, to rows [B, L, D] that `head` takes."""

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Rows [..., D] to logits [..., V]; the mask token's is minus infinity unless ``mask_logit``."""
