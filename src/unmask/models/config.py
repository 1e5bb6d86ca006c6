"""The shapes of the networks as Hugging Face configurations, checked when they are made, and the one epsilon."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor
from transformers import PretrainedConfig

from unmask.errors import UnmaskError


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


EPSILON = 1e-3
"""A conditioned network sees sigma = -log(EPSILON + (1 - EPSILON) alpha), the published log-linear value."""


class TransformerConfig(PretrainedConfig):
    """What the DiT and its causal twin share. The defaults are the published small model with the GPT-2 vocabulary.

    Args:
        vocab_size: Tokens in the vocabulary, the mask token included.
        mask_token_id: The mask token; the last token of the vocabulary when not given.
        hidden_size: Width of the residual stream.
        num_hidden_layers: Blocks.
        num_attention_heads: Heads; each has an even width of ``hidden_size / num_attention_heads``.
        mlp_ratio: Width of the MLP over ``hidden_size``.
        dropout: Dropout of the two residual branches of a block, the only dropout there is.
        max_length: Longest sequence, pads and begin token included.
        rope_base: Base of the rotary frequencies.
        qk_norm: Whether queries and keys are normalised in every head before they are rotated.
    """

    # Declared, since a bare `max_length` would be taken for a parameter of `generate()` that lost its way.
    max_length: int = 1024

    def __init__(
        self,
        vocab_size: int = 50_258,
        mask_token_id: int | None = None,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        mlp_ratio: int = 4,
        dropout: float = 0.1,
        max_length: int = 1024,
        rope_base: float = 10_000.0,
        qk_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"tie_word_embeddings": False, **kwargs})
        self.vocab_size = vocab_size
        self.mask_token_id = vocab_size - 1 if mask_token_id is None else mask_token_id
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.mlp_ratio = mlp_ratio
        self.dropout = dropout
        self.max_length = max_length
        self.rope_base = rope_base
        self.qk_norm = qk_norm
        self._check()

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def _check(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "mlp_ratio",
            "max_length",
        ):
            if getattr(self, name) < 1:
                raise UnmaskError(f"{name}={getattr(self, name)} makes no network; give a number of 1 or more.")
        if not 0 <= self.dropout <= 1:
            raise UnmaskError(f"dropout={self.dropout} is no probability; give a number from 0 to 1.")
        if self.hidden_size % (2 * self.num_attention_heads):
            raise UnmaskError(
                f"hidden_size={self.hidden_size} does not split into {self.num_attention_heads} heads of an even width "
                f"(rotary positions need it); choose a multiple of {2 * self.num_attention_heads}."
            )
        self._check_token("mask_token_id", self.mask_token_id)

    def _check_token(self, name: str, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise UnmaskError(
                f"{name}={token} is outside the vocabulary of {self.vocab_size} tokens; "
                f"choose a token from 0 to {self.vocab_size - 1}."
            )


class DiTConfig(TransformerConfig):
    """The bidirectional denoiser.

    Args:
        conditioned: Whether the network sees alpha, through adaLN-zero modulation as published.
        cond_dim: Width of the conditioning vector.
        mask_logit: Whether ``forward`` gives the mask token an ordinary logit instead of minus infinity.
        absolute_positions: Whether a position is also told where it stands in its row, and not only how far from
            others: to rotary positions alone all masks of a blank canvas are the same.
        planner_width: Width of the planner beside the network, which says what it would get right; None without one.
        kwargs: The fields of `TransformerConfig`.
    """

    model_type = "unmask-dit"

    def __init__(
        self,
        conditioned: bool = False,
        cond_dim: int = 128,
        mask_logit: bool = False,
        absolute_positions: bool = False,
        planner_width: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.absolute_positions = absolute_positions
        self.conditioned = conditioned
        self.cond_dim = cond_dim
        self.mask_logit = mask_logit
        self.planner_width = planner_width
        if conditioned and cond_dim < 1:
            raise UnmaskError(f"cond_dim={cond_dim} leaves no room for alpha; give a number of 1 or more.")


class CausalConfig(TransformerConfig):
    """The autoregressive twin.

    Args:
        bos_token_id: The token every sequence begins with. ``"mask"`` takes the mask token, whose embedding the twin
            would otherwise never use; None begins with the first token of the text, which is then not predicted.
        kwargs: The fields of `TransformerConfig`.
    """

    model_type = "unmask-causal"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(self, bos_token_id: int | Literal["mask"] | None = "mask", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bos_token_id = self.mask_token_id if bos_token_id == "mask" else bos_token_id
        if self.bos_token_id is not None:
            self._check_token("bos_token_id", self.bos_token_id)
