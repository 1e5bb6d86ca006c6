"""Networks by size: what a recipe says about its model, and the model made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from unmask.errors import UnmaskError
from unmask.models.causal import CausalLM
from unmask.models.config import CausalConfig, DiTConfig
from unmask.models.dit import DiT
from unmask.models.lora import LoraConfig, inject
from unmask.models.opening import open_network, read_config, reads_forward
from unmask.models.planner import PlannerConfig, attach
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
    qk_norm: bool = False
    """Whether queries and keys are normalised in every head, which bears higher rates; not in published weights."""

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
            "qk_norm": self.qk_norm,
            "vocab_size": vocab_size,
            "mask_token_id": mask_token_id,
            "max_length": length,
        }


class DiTSpec(_TrunkSpec):
    """The bidirectional denoiser, unconditioned unless asked otherwise."""

    name: Literal["dit"] = "dit"
    conditioned: bool = False
    cond_dim: int = Field(default=128, ge=1)
    absolute_positions: bool = False
    """Whether rows have a beginning that the network knows, as rows of one text each do; not in published weights."""

    def build(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool = False) -> DiT:
        """A fresh network for a vocabulary of vocab_size tokens (the mask included) and sequences of up to length."""
        own: dict[str, Any] = {"conditioned": self.conditioned, "cond_dim": self.cond_dim, "mask_logit": mask_logit}
        own |= {"absolute_positions": self.absolute_positions}
        return DiT(DiTConfig(**own, **self._fields(vocab_size, mask_token_id, length)))


class CausalSpec(_TrunkSpec):
    """The autoregressive twin, which begins every sequence with the mask token."""

    name: Literal["causal"] = "causal"
    causal: ClassVar[bool] = True

    def build(self, vocab_size: int, mask_token_id: int, length: int) -> CausalLM:
        """A fresh network for a vocabulary of vocab_size tokens (the mask included) and sequences of up to length."""
        return CausalLM(CausalConfig(**self._fields(vocab_size, mask_token_id, length)))


class CheckpointSpec(Component):
    """A network that was trained before, from its folder: all of it learns further, or with `lora` thin factors do, or
    with `planner` a head that says what the network, which stays as it is, would get right."""

    name: Literal["checkpoint"] = "checkpoint"
    path: str
    lora: LoraConfig | None = None
    planner: PlannerConfig | None = None
    dropout: float | None = Field(default=None, ge=0, le=1)
    """In the place of the dropout that it was trained with."""
    absolute_positions: bool = False
    """Whether it is also told absolute positions from now on, which it does not look at at first."""

    @property
    def causal(self) -> bool:
        """Whether the network sees only what stands before."""
        return reads_forward(read_config(Path(self.path)))

    def build(self, vocab_size: int, mask_token_id: int, length: int, **options: Any) -> Any:
        """The network in float32; `vocab_size` and `mask_token_id` must be its own, `length` may be longer."""
        config = read_config(Path(self.path))
        self._check_vocabulary(config, vocab_size, mask_token_id)
        config.max_length = max(config.max_length, length)
        config.dropout = config.dropout if self.dropout is None else self.dropout
        if not reads_forward(config):
            config.mask_logit = options.get("mask_logit", False)
            config.planner_width = None
        network = open_network(Path(self.path), self.causal, config=config, dtype=torch.float32)
        if self.absolute_positions and not self.causal:
            network.tell_positions()
        if self.planner is not None:
            return attach(network, self.planner)
        return network if self.lora is None else inject(network, self.lora)

    def _check_vocabulary(self, config: Any, vocab_size: int, mask_token_id: int) -> None:
        if (vocab_size, mask_token_id) != (config.vocab_size, config.mask_token_id):
            raise UnmaskError(
                f"The tokenizer has {vocab_size} tokens with the mask at {mask_token_id}, and the network in "
                f"'{self.path}' has {config.vocab_size} with the mask at {config.mask_token_id}; "
                "train it with the tokenizer it was trained with."
            )
