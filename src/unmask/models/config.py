"""The denoiser protocol, the Hugging Face configurations of the networks, and the one epsilon."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor
from transformers import PretrainedConfig

from unmask.errors import UnmaskError

EPSILON = 1e-3
"""A conditioned network sees sigma = -log(EPSILON + (1 - EPSILON) alpha), the published log-linear value."""
CAUSAL_TYPES = ("gpt2", "llama", "qwen2", "qwen3")
"""The `model_type` of the Hugging Face causal LMs that can become denoisers."""
MAX_LAYERS = 1000
"""Blocks of a new network at most, so that a mistyped number is refused before any is built."""


class DenoiserConfig(Protocol):
    """The fields that every denoiser's configuration has."""

    vocab_size: int
    mask_token_id: int
    max_length: int
    conditioned: bool


@runtime_checkable
class Denoiser(Protocol):
    """A network that predicts the clean tokens of a masked sequence, in two steps: hidden states, then logits."""

    @property
    def config(self) -> DenoiserConfig:
        """Sizes and the mask token."""

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """Ids [B, L], alpha [B] or None and attention_mask [B, L] or None to hidden states [B, L, D]."""

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Rows [..., D] to logits [..., V]; the logit of the mask token is -inf unless ``mask_logit``."""


class NetworkConfig(PretrainedConfig):
    """The fields that all networks share. The defaults are those of the published small model with GPT-2 tokens.

    Args:
        vocab_size: Tokens in the vocabulary, including the mask token.
        mask_token_id: The mask token; by default the last token of the vocabulary.
        hidden_size: Width of the residual stream.
        num_hidden_layers: Number of blocks.
        dropout: Dropout of the residual branches of a block; there is no other dropout.
        max_length: Longest sequence, including padding and the begin token.
    """

    # Declared as a class attribute: transformers takes an undeclared `max_length` for a parameter of `generate()`.
    max_length: int = 1024

    def __init__(
        self,
        vocab_size: int = 50_258,
        mask_token_id: int | None = None,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        dropout: float = 0.1,
        max_length: int = 1024,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"tie_word_embeddings": False, **kwargs})
        self.vocab_size = vocab_size
        self.mask_token_id = vocab_size - 1 if mask_token_id is None else mask_token_id
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.dropout = dropout
        self.max_length = max_length
        self._check_sizes("vocab_size", "hidden_size", "num_hidden_layers", "max_length")
        if not 0 <= self.dropout <= 1:
            raise UnmaskError(f"dropout must be in [0, 1], got {self.dropout}.")
        self._check_token("mask_token_id", self.mask_token_id)

    @property
    def row_size(self) -> int:
        """Width of the rows that the head takes."""
        return self.hidden_size

    def _check_sizes(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise UnmaskError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def _check_token(self, name: str, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise UnmaskError(
                f"{name} must be from 0 to {self.vocab_size - 1} for a vocabulary of {self.vocab_size} tokens, "
                f"got {token}."
            )


class TransformerConfig(NetworkConfig):
    """The fields that `DiTConfig` and `CausalConfig` share.

    Args:
        num_attention_heads: Number of heads; ``hidden_size / num_attention_heads`` must be even.
        mlp_ratio: Width of the MLP divided by ``hidden_size``.
        rope_base: Base of the rotary frequencies.
        qk_norm: Whether to normalise queries and keys in every head before they are rotated.
        kwargs: The fields of `NetworkConfig`.
    """

    def __init__(
        self,
        num_attention_heads: int = 12,
        mlp_ratio: int = 4,
        rope_base: float = 10_000.0,
        qk_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_attention_heads = num_attention_heads
        self.mlp_ratio = mlp_ratio
        self.rope_base = rope_base
        self.qk_norm = qk_norm
        self._check_sizes("num_attention_heads", "mlp_ratio")
        if self.hidden_size % (2 * self.num_attention_heads):
            raise UnmaskError(
                f"hidden_size must be a multiple of {2 * self.num_attention_heads} for {self.num_attention_heads} "
                f"attention heads of an even width, got {self.hidden_size}."
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class MaskedConfig(NetworkConfig):
    """The fields that all bidirectional denoisers share.

    Args:
        conditioned: Whether the network sees alpha, through adaLN-zero modulation as published.
        modulated: Whether an unconditioned network keeps the modulation, at a constant sigma = 0, as the published runs
            without time conditioning do.
        cond_dim: Width of the conditioning vector.
        mask_logit: Whether ``forward`` returns an ordinary logit for the mask token instead of -inf.
        planner_width: Hidden width of the planner head, or None without a planner.
        row_length: Tokens per training row if the network learned the EOS tokens after a text; ``forward`` then
            continues shorter rows with masks, since it takes the end of a row for the end of the text.
        kwargs: The fields of the other configurations.
    """

    def __init__(
        self,
        conditioned: bool = False,
        modulated: bool = False,
        cond_dim: int = 128,
        mask_logit: bool = False,
        planner_width: int | None = None,
        row_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.conditioned = conditioned
        self.modulated = modulated or conditioned
        self.cond_dim = cond_dim
        self.mask_logit = mask_logit
        self.planner_width = planner_width
        self.row_length = row_length
        if self.modulated and cond_dim < 1:
            raise UnmaskError(f"cond_dim must be at least 1, got {cond_dim}.")


class DiTConfig(MaskedConfig, TransformerConfig):
    """The diffusion transformer.

    Args:
        absolute_positions: Whether to add absolute position embeddings. With rotary embeddings alone all positions of a
            fully masked sequence look the same.
        learned_positions: Whether a learned vector per position replaces the rotary embeddings, as in BERT.
        shifted: Whether position i is predicted from the row of position i - 1, as in an autoregressive model, from
            whose weights such a network starts.
        begin_token_id: The token before position 0 of a shifted network, which the network adds itself; with None
            position 0 is predicted from its own row.
        kwargs: The fields of `MaskedConfig` and `TransformerConfig`.
    """

    model_type = "unmask-dit"

    def __init__(
        self,
        absolute_positions: bool = False,
        learned_positions: bool = False,
        shifted: bool = False,
        begin_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.absolute_positions = absolute_positions
        self.learned_positions = learned_positions
        self.shifted = shifted
        self.begin_token_id = begin_token_id
        if begin_token_id is not None:
            self._check_token("begin_token_id", begin_token_id)


class AutoregressiveConfig(NetworkConfig):
    """The field that all autoregressive models share.

    Args:
        bos_token_id: The token that every sequence begins with. ``"mask"`` is the mask token, whose embedding the model
            does not need otherwise; with None a sequence begins with the first token of its text, which is then not
            predicted.
        kwargs: The fields of the other configurations.
    """

    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(self, bos_token_id: int | Literal["mask"] | None = "mask", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bos_token_id = self.mask_token_id if bos_token_id == "mask" else bos_token_id
        if self.bos_token_id is not None:
            self._check_token("bos_token_id", self.bos_token_id)


class CausalConfig(AutoregressiveConfig, TransformerConfig):
    """The autoregressive transformer, with the fields of `AutoregressiveConfig` and `TransformerConfig`."""

    model_type = "unmask-causal"

    def __init__(self, **kwargs: Any) -> None:  # without it, transformers would generate one
        super().__init__(**kwargs)
