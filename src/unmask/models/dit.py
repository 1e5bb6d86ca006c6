"""The diffusion transformer: a canvas with masks in, logits of the clean tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from unmask.errors import UnmaskError
from unmask.models.attention import AttentionMask, KeyValueCache, bidirectional_mask, rotary_angles, waves
from unmask.models.config import EPSILON, DiTConfig, TransformerConfig
from unmask.models.cross_entropy import Projection
from unmask.models.layers import (
    Block,
    Dropout,
    Gelu,
    LayerNorm,
    OutputLayer,
    TimestepEmbedder,
    TokenEmbedding,
    ZeroLinear,
    draw_seeds,
)


def label_loss(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """Mean cross-entropy of logits [B, L, V] at the labels [B, L] that are not -100; None without labels."""
    if labels is None:
        return None
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


class Transformer(PreTrainedModel):
    """Embedding, blocks and output layer. A subclass says what a token may see and what the conditioning is."""

    config: TransformerConfig
    config_class: type[PretrainedConfig] | None = TransformerConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: TransformerConfig, cond_dim: int | None = None) -> None:
        super().__init__(config)
        self._no_split_modules = ["Block"]
        self.vocab_embed = TokenEmbedding(config.vocab_size, config.hidden_size)
        self.sigma_map = None if cond_dim is None else TimestepEmbedder(cond_dim)
        self.blocks = nn.ModuleList(Block(config, layer, cond_dim) for layer in range(config.num_hidden_layers))
        self.output_layer = OutputLayer(config, cond_dim)
        self.fused = False
        self.post_init()

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Logits [..., V] of hidden rows [..., D]; the mask token's is minus infinity unless ``mask_logit``."""
        bias = self.output_layer.bias(None if mask_logit else self.config.mask_token_id)
        return F.linear(rows, self.output_layer.linear.weight, bias)

    def projection(self) -> Projection:
        """What `head` multiplies with, the mask token closed, for those who reduce logits as they arise."""
        bias = self.output_layer.bias(self.config.mask_token_id)
        return Projection(self.output_layer.linear.weight, bias, self._precision(), self.fused)

    def _precision(self) -> torch.dtype:
        """What the trunk multiplies in: autocast's type where that is on, else that of its weights."""
        embedding = self.vocab_embed.embedding
        device = embedding.device.type
        casts = device != "meta" and torch.is_autocast_enabled(device)
        return torch.get_autocast_dtype(device) if casts else embedding.dtype

    def get_input_embeddings(self) -> nn.Module:
        """The module that turns token ids into vectors."""
        return self.vocab_embed

    def _run(
        self,
        input_ids: Tensor,
        scope: AttentionMask,
        cond: Tensor | None = None,
        past: int | Tensor = 0,
        past_key_values: KeyValueCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Ids [B, L], the first of them at position ``past``, through all blocks and the final norm to [B, L, D].

        With positions [B, K] the last block computes those rows alone, [B, K, D].
        """
        config = self.config
        rotary = rotary_angles(input_ids.shape[1], config.head_dim, config.rope_base, input_ids.device, offset=past)
        x = self._embedded(input_ids).to(self._precision())
        told = cond if cond is None else cond.to(x.dtype)
        seeds = self._dropout_seeds(x.device)
        for block, own in zip(self.blocks[:-1], seeds, strict=False):
            x = block(x, told, rotary, scope, past_key_values=past_key_values, seeds=own)
        x = self.blocks[-1](
            x, told, rotary, scope, past_key_values=past_key_values, positions=positions, seeds=seeds[-1]
        )
        if self.output_layer.linear.weight.dtype != self.vocab_embed.embedding.dtype:
            x = x.to(self.output_layer.linear.weight.dtype)
        return self.output_layer.normalise(x, cond)

    def _dropout_seeds(self, device: torch.device) -> Sequence[Tensor | None]:
        """[2, 2] for each block, where the blocks are compiled for a GPU and drop anything; else None."""
        drops = self.training and self.fused and device.type == "cuda" and self.config.dropout > 0
        return draw_seeds(len(self.blocks), 2, device=device).unbind() if drops else [None] * len(self.blocks)

    def _embedded(self, input_ids: Tensor) -> Tensor:
        """What the first block sees of the tokens, [B, L, D]."""
        return self.vocab_embed(input_ids)

    def _check_lengths(self, input_ids: Tensor, attention_mask: Tensor | None, past: int = 0) -> None:
        length = past + input_ids.shape[1]
        self._check_length(length)
        if attention_mask is not None and attention_mask.shape != (input_ids.shape[0], length):
            raise UnmaskError(
                f"The attention mask of shape {tuple(attention_mask.shape)} does not fit {input_ids.shape[0]} "
                f"sequences of {length} tokens; give one entry per token."
            )

    def _check_length(self, length: int) -> None:
        if length > self.config.max_length:
            raise UnmaskError(
                f"A sequence of {length} tokens is longer than the {self.config.max_length} of this network; write "
                "longer text window by window, the end of one as prompt of the next (semi-autoregressive sampling), "
                f"score it in blocks, or train a network with a max_length of {length} or more."
            )

    def _init_weights(self, module: nn.Module) -> None:
        # Every layer knows its own start; transformers guards what a checkpoint has filled already.
        if isinstance(module, (TokenEmbedding, LayerNorm, nn.Linear)):
            module.reset_parameters()


LEAST_DOUBT = 1e-6
"""The smallest 1 - p that float32 logits tell apart from none."""


class PlannerConfig(BaseModel):
    """What a recipe says about a planner: `width` is that of its hidden layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(default=128, ge=1)


class PlannerHead(nn.Module):
    """The log-odds that the most likely token is the right one: the network's own, and what is learnt to be added.

    What is added is made of a hidden row and of those log-odds. It starts at zero: a fresh planner plans by confidence.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(hidden_size, bias=True)
        self.inner = nn.Linear(hidden_size, width)
        self.gelu = Gelu()
        self.outer = ZeroLinear(width + 1, 1)

    def forward(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """Hidden rows [..., D] and the log-probability [...] of their most likely tokens to log-odds [...]."""
        own = log_odds(log_top.float())
        told = torch.cat([self.gelu(self.inner(self.norm(rows))).float(), own[..., None]], dim=-1)
        return own + self.outer(told)[..., 0].float()


def missing_planner_error(checkpoint: Path | str | None = None) -> UnmaskError:
    """What to say where a planner is asked for and there is none, in a checkpoint if it is known which."""
    network = "This network" if checkpoint is None else f"'{checkpoint}'"
    return UnmaskError(
        f"{network} has no planner to order positions by; train one with "
        f"'unmask train planner --from {checkpoint or 'CKPT'}'."
    )


def log_odds(log_p: Tensor) -> Tensor:
    """log p - log(1 - p) of log p; finite."""
    return log_p - torch.log((-torch.expm1(log_p)).clamp_min(LEAST_DOUBT))


def attach_planner(network: Any, planner: PlannerConfig) -> Any:
    """Put a fresh planner beside a network. It alone learns from now on, and the network drops nothing out."""
    network.requires_grad_(False)
    for module in network.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    network.planner = PlannerHead(network.config.hidden_size, planner.width)
    network.config.planner_width = planner.width
    return network


class PositionEmbedding(nn.Module):
    """Waves that tell every position from all others, [L, D], each channel as loud as it has learnt to be."""

    def __init__(self, hidden_size: int, base: float) -> None:
        super().__init__()
        self.base = base
        self.gain = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Silent."""
        nn.init.zeros_(self.gain)

    def forward(self, length: int) -> Tensor:
        return self.gain * waves(length, len(self.gain), self.base, self.gain.device)


class DiT(Transformer):
    """The bidirectional denoiser, conditioned on alpha as published or, by default, not at all."""

    config: DiTConfig
    config_class = DiTConfig
    _keys_to_ignore_on_load_unexpected = [r"^planner\."]  # noqa: RUF012

    def __init__(self, config: DiTConfig) -> None:
        super().__init__(config, cond_dim=config.cond_dim if config.conditioned else None)
        self.position_embed: PositionEmbedding | None = None
        if config.absolute_positions:
            self.add_absolute_positions()
        width = config.planner_width
        self.planner = None if width is None else PlannerHead(config.hidden_size, width)

    def add_absolute_positions(self) -> None:
        """Add absolute positions, which the network does not look at at first, where it has none."""
        self.config.absolute_positions = True
        self.position_embed = self.position_embed or PositionEmbedding(self.config.hidden_size, self.config.rope_base)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """The rows that `head` takes, [B, L, D].

        Args:
            input_ids: Tokens and masks, [B, L].
            alpha: The probability that the noise has kept a token, [B]. A conditioned network takes None for sigma = 0
                (time conditioning off, as published); an unconditioned one does not look at it.
            attention_mask: True (or 1) at tokens and False at pads, [B, L]; None when there are no pads.
        """
        self._check_lengths(input_ids, attention_mask)
        return self._run(input_ids, bidirectional_mask(attention_mask), self._condition(alpha, input_ids.device))

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at positions [B, K] of each sequence alone, [B, K, D], for less work."""
        self._check_lengths(input_ids, attention_mask)
        cond = self._condition(alpha, input_ids.device)
        return self._run(input_ids, bidirectional_mask(attention_mask), cond, positions=positions)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> MaskedLMOutput:
        """Logits [B, L, V] at every position, as every Hugging Face masked LM gives them.

        ``labels`` [B, L] adds the mean cross-entropy of the positions whose label is not -100. ``token_type_ids`` is
        there for tokenizers that make them; the network has no segments and does not look at it.
        """
        logits = self.head(self.hidden(input_ids, alpha, attention_mask), self.config.mask_logit)
        return MaskedLMOutput(loss=label_loss(logits, labels), logits=logits)  # type: ignore[arg-type]

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """[...] log-odds that the most likely tokens at hidden rows [..., D], of log-probability [...], are right."""
        if self.planner is None:
            raise missing_planner_error()
        return self.planner(rows, log_top)

    def _embedded(self, input_ids: Tensor) -> Tensor:
        x = self.vocab_embed(input_ids)
        return x if self.position_embed is None else x + self.position_embed(x.shape[1]).to(x.dtype)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PositionEmbedding):
            module.reset_parameters()
        super()._init_weights(module)

    def _condition(self, alpha: Tensor | None, device: torch.device) -> Tensor | None:
        """The conditioning vector, [B, C], or [1, C] when it is the same for all; None in an unconditioned network."""
        if self.sigma_map is None:
            return None
        sigma = torch.zeros(1, device=device) if alpha is None else -torch.log(EPSILON + (1 - EPSILON) * alpha.float())
        return F.silu(self.sigma_map(sigma))
