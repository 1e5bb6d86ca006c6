"""The trunk that the DiT and its causal twin share.

Parameters carry the published names (without their ``backbone.`` prefix) and come in the published order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from unmask.errors import UnmaskError
from unmask.linear_cross_entropy import Projection
from unmask.models.attention import KeyValues, Scope, rotary_angles
from unmask.models.config import TrunkConfig
from unmask.models.dropout import draw_seeds
from unmask.models.layers import Block, LayerNorm, OutputLayer, TimestepEmbedder, TokenEmbedding


def label_loss(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """Mean cross-entropy of logits [B, L, V] at the labels [B, L] that are not -100; None without labels."""
    if labels is None:
        return None
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)


class Trunk(PreTrainedModel):
    """Embedding, blocks and output layer. A subclass says what a token may see and what the conditioning is."""

    config: TrunkConfig
    config_class: type[PretrainedConfig] | None = TrunkConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True

    def __init__(self, config: TrunkConfig, cond_dim: int | None = None) -> None:
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
        scope: Scope,
        cond: Tensor | None = None,
        past: int | Tensor = 0,
        past_key_values: KeyValues | None = None,
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
