"""Networks by size: what a recipe says about its model, and the model made from it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from unmask.models.causal import CausalLM
from unmask.models.config import CausalConfig, DiTConfig
from unmask.models.dit import DiT
from unmask.registry import Component

Size = Literal["nano", "tiny", "small", "medium"]

SIZES: dict[Size, dict[str, int]] = {
    "nano": {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4},
    "tiny": {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8},
    "small": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    "medium": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16},
}


class _TrunkSpec(Component):
    """A size, and what differs from it."""

    causal: ClassVar[bool] = False
    """Whether its networks see only what stands before."""

    size: Size = "small"
    hidden_size: int | None = Field(default=None, ge=1)
    layers: int | None = Field(default=None, ge=1)
    heads: int | None = Field(default=None, ge=1)
    dropout: float = Field(default=0.1, ge=0, le=1)

    def _fields(self, vocab_size: int, mask_token_id: int, length: int) -> dict[str, Any]:
        chosen = {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
        }
        return {
            **SIZES[self.size],
            **{name: value for name, value in chosen.items() if value is not None},
            "dropout": self.dropout,
            "vocab_size": vocab_size,
            "mask_token_id": mask_token_id,
            "max_length": length,
        }


class DiTSpec(_TrunkSpec):
    """The bidirectional denoiser, unconditioned unless asked otherwise."""

    name: Literal["dit"] = "dit"
    conditioned: bool = False
    cond_dim: int = Field(default=128, ge=1)

    def build(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool = False) -> DiT:
        """A fresh network for a vocabulary of vocab_size tokens (the mask included) and sequences of up to length."""
        fields = self._fields(vocab_size, mask_token_id, length)
        return DiT(DiTConfig(conditioned=self.conditioned, cond_dim=self.cond_dim, mask_logit=mask_logit, **fields))


class CausalSpec(_TrunkSpec):
    """The autoregressive twin, which begins every sequence with the mask token."""

    name: Literal["causal"] = "causal"
    causal: ClassVar[bool] = True

    def build(self, vocab_size: int, mask_token_id: int, length: int) -> CausalLM:
        """A fresh network for a vocabulary of vocab_size tokens (the mask included) and sequences of up to length."""
        return CausalLM(CausalConfig(**self._fields(vocab_size, mask_token_id, length)))
