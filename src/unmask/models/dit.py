"""The base classes of the networks, masked denoisers among them, and the diffusion transformer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from unmask.errors import UnmaskError
from unmask.models.attention import AttentionAnnealing, AttentionMask, Rotary, bidirectional_mask, rotary_angles
from unmask.models.config import EPSILON, DiTConfig, MaskedConfig, NetworkConfig, TransformerConfig
from unmask.models.cross_entropy import Projection
from unmask.models.layers import (
    Block,
    LearnedPositions,
    OutputLayer,
    PlannerHead,
    PositionEmbedding,
    TimestepEmbedder,
    TokenEmbedding,
    check_input,
    continue_with_masks,
    draw_dropout_seeds,
    exclude_token,
    product_dtype,
    shifted_rows,
)


class Network(PreTrainedModel):
    """Embedding, blocks and output layer. Subclasses define the blocks and their inputs."""

    config: NetworkConfig
    config_class: type[PretrainedConfig] | None = NetworkConfig
    block_class: ClassVar[type[nn.Module]]
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True

    def __init__(self, config: NetworkConfig, cond_dim: int | None = None) -> None:
        super().__init__(config)
        self._no_split_modules = [self.block_class.__name__]
        self.vocab_embed = TokenEmbedding(config.vocab_size, config.hidden_size)
        self.sigma_map = None if cond_dim is None else TimestepEmbedder(cond_dim)
        blocks = (self.block_class(config, layer, cond_dim) for layer in range(config.num_hidden_layers))
        self.blocks = nn.ModuleList(blocks)
        self.output_layer = OutputLayer(config, cond_dim)
        self.fused = False
        """Whether draws and losses use compiled kernels."""
        self.post_init()

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Logits [..., V] of hidden states [..., D]; the logit of the mask token is -inf unless ``mask_logit``."""
        return F.linear(rows, *self._output_weights(None if mask_logit else self.config.mask_token_id))

    def projection(self) -> Projection:
        """Weight and bias of `head`, without the mask token, for losses that never store all logits."""
        dtype = product_dtype(self.vocab_embed.embedding)
        return Projection(*self._output_weights(self.config.mask_token_id), dtype, self.fused)

    def _output_weights(self, excluded_token: int | None) -> tuple[Tensor, Tensor]:
        """Weight and bias of the projection; the logit of the excluded token is -inf."""
        linear = self.output_layer.linear
        return linear.weight, exclude_token(linear.bias, excluded_token)

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.vocab_embed

    def get_output_embeddings(self) -> nn.Module:
        """The projection to the vocabulary."""
        return self.output_layer.linear

    @torch.no_grad()
    def resize_token_embeddings(  # type: ignore[override]
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Cut or extend the vocabulary at its end; the mask token keeps its id.

        New tokens start as the mean of the others, or as zeros without ``mean_resizing``.
        """
        size, multiple = new_num_tokens or self.config.vocab_size, pad_to_multiple_of or 1
        size = -(-size // multiple) * multiple
        if size <= self.config.mask_token_id:
            raise UnmaskError(
                f"new_num_tokens must be above {self.config.mask_token_id}, the id of the mask token, got {size}."
            )
        linear = self.output_layer.linear
        for module, name in ((self.vocab_embed, "embedding"), (linear, "weight"), (linear, "bias")):
            old = getattr(module, name)
            new = old.new_zeros(size, *old.shape[1:])
            new[: len(old)] = old[:size]
            if mean_resizing:
                new[len(old) :] = old.mean(dim=0)
            setattr(module, name, nn.Parameter(new, requires_grad=old.requires_grad))
        self.config.vocab_size = linear.out_features = size
        return self.vocab_embed

    def _run(
        self,
        input_ids: Tensor,
        inputs: tuple[Any, ...],
        cond: Tensor | None = None,
        past_key_values: Any = None,
        positions: Tensor | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Run all blocks and the final norm on ids [B, L], to [B, L, D].

        ``inputs`` is what all blocks read besides the residual stream and ``cond``, such as the attention mask. With
        positions [B, K] the last block computes only those rows, [B, K, D]. The residual stream before each block and
        the result are appended to ``states``.
        """
        x = self._embed(input_ids).to(product_dtype(self.vocab_embed.embedding))
        block_cond = cond if cond is None else cond.to(x.dtype)
        seeds = self._dropout_seeds(x.device)
        for block, block_seeds in zip(self.blocks[:-1], seeds, strict=False):
            if states is not None:
                states.append(x)
            x = block(x, block_cond, *inputs, past_key_values=past_key_values, seeds=block_seeds)
        if states is not None:
            states.append(x)
        x = self.blocks[-1](
            x, block_cond, *inputs, past_key_values=past_key_values, positions=positions, seeds=seeds[-1]
        )
        if self.output_layer.linear.weight.dtype != self.vocab_embed.embedding.dtype:
            x = x.to(self.output_layer.linear.weight.dtype)
        x = self.output_layer.normalise(x, cond)
        if states is not None:
            states.append(x)
        return x

    def _requested_states(
        self, output_hidden_states: bool | None, output_attentions: bool | None
    ) -> list[Tensor] | None:
        """An empty list for the hidden states if they are requested by the caller or the config."""
        if output_attentions:
            raise UnmaskError("output_attentions=True is not supported: attention is computed without its weights.")
        requested = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return [] if requested else None

    def _embed(self, input_ids: Tensor) -> Tensor:
        return self.vocab_embed(input_ids)

    def _dropout_seeds(self, device: torch.device, blocks: nn.ModuleList | None = None) -> Sequence[Tensor | None]:
        """Seeds for each block if the blocks are compiled for a GPU and use dropout, else None for each."""
        blocks = self.blocks if blocks is None else blocks
        if not (self.training and self.fused and device.type == "cuda" and self.config.dropout > 0):
            return [None] * len(blocks)
        return draw_dropout_seeds(len(blocks), getattr(blocks[0], "branches", 2), device=device).unbind()

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this only for weights that a checkpoint does not provide
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]


class MaskedNetwork(Network):
    """A bidirectional denoiser, conditioned on alpha as published or, by default, unconditioned."""

    config: MaskedConfig
    config_class: type[PretrainedConfig] | None = MaskedConfig
    _keys_to_ignore_on_load_unexpected = [r"^planner\."]  # noqa: RUF012

    def __init__(self, config: MaskedConfig) -> None:
        super().__init__(config, cond_dim=config.cond_dim if config.modulated else None)
        self.loss_type = "ForMaskedLM"
        width = config.planner_width
        self.planner = None if width is None else PlannerHead(config.row_size, width)

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """The hidden states [B, L, D], the input of `head`.

        Args:
            input_ids: Tokens and masks, [B, L].
            alpha: The probability that a token is visible, [B]. In a conditioned network None means sigma = 0, as in an
                unconditioned one, which ignores it.
            attention_mask: True (or 1) at tokens and False at padding, [B, L]; None without padding.
        """
        check_input(input_ids, attention_mask, self.config.max_length)
        return self._rows(input_ids, alpha, attention_mask)

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at positions [B, K] of each sequence only, [B, K, D], at lower cost."""
        check_input(input_ids, attention_mask, self.config.max_length)
        return self._rows(input_ids, alpha, attention_mask, positions)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        loss_weight: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MaskedLMOutput:
        """Logits [B, L, V] at every position, as in every Hugging Face masked LM.

        With ``labels`` [B, L] the loss is the mean cross-entropy where a label is not -100. With ``loss_weight`` [B],
        w(t) of each row, it is the bound per labelled token (eq. 10): the weighted cross-entropy of masked tokens, to
        which visible tokens add 0. ``num_items_in_batch`` replaces the number of labels. If the config has a
        ``row_length``, shorter rows are continued with masks, as they are in `unmask.MaskedDiffusionLM.fill`.
        ``token_type_ids``, which some tokenizers return, is ignored.
        """
        check_input(input_ids, attention_mask, self.config.max_length)
        states = self._requested_states(output_hidden_states, output_attentions)
        ids, length, width = input_ids, self.config.row_length, input_ids.shape[1]
        if length is not None:
            ids, attention_mask = continue_with_masks(ids, attention_mask, length, self.config.mask_token_id), None
        rows = self._rows(ids, alpha, attention_mask, states=states)
        logits = self.head(rows[:, :width], self.config.mask_logit)
        loss = None
        if labels is not None and loss_weight is None:
            loss = self.loss_function(logits, labels, logits.shape[-1], num_items_in_batch=num_items_in_batch)
        elif labels is not None and loss_weight is not None:
            count = (labels != -100).sum().clamp_min(1) if num_items_in_batch is None else num_items_in_batch
            masked = labels.masked_fill(input_ids != self.config.mask_token_id, -100)
            nll_BL = F.cross_entropy(logits.float().transpose(1, 2), masked, reduction="none")
            loss = (loss_weight[:, None] * nll_BL).sum() / count
        hidden_states = None if states is None else tuple(state[:, :width] for state in states)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=hidden_states)  # type: ignore[arg-type]

    def plan(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """The log-odds [...] that the top tokens are right, from hidden states [..., D] and the tokens' log p [...]."""
        if self.planner is None:
            raise missing_planner_error()
        return self.planner(rows, log_top)

    def _rows(
        self,
        input_ids: Tensor,
        alpha: Tensor | None,
        attention_mask: Tensor | None,
        positions: Tensor | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """The hidden states [B, L, D] that predict the tokens, or [B, K, D] at positions [B, K] alone."""
        inputs, cond = self._block_inputs(input_ids.shape[1], attention_mask), self._condition(alpha, input_ids.device)
        return self._run(input_ids, inputs, cond, positions=positions, states=states)

    def _block_inputs(self, length: int, attention_mask: Tensor | None) -> tuple[Any, ...]:
        """What all blocks read besides the residual stream: here the padding mask."""
        return (None if attention_mask is None else attention_mask.bool(),)

    def _condition(self, alpha: Tensor | None, device: torch.device) -> Tensor | None:
        """The conditioning vector [B, C], or [1, C] if there is no alpha; None in a network without modulation."""
        if self.sigma_map is None:
            return None
        if alpha is None or not self.config.conditioned:
            sigma = torch.zeros(1, device=device)
        else:
            sigma = -torch.log(EPSILON + (1 - EPSILON) * alpha.float())
        return F.silu(self.sigma_map(sigma))


class Transformer(Network):
    """A network of attention blocks."""

    config: TransformerConfig
    config_class: type[PretrainedConfig] | None = TransformerConfig
    block_class = Block
    _supports_sdpa = True

    def _rotary(self, length: int, past: int | Tensor = 0) -> Rotary:
        """The rotary table of ``length`` tokens, the first of which is at position ``past``."""
        return rotary_angles(length, self.config.head_dim, self.config.rope_base, self.device, offset=past)


class DiT(MaskedNetwork, Transformer):
    """The diffusion transformer."""

    config: DiTConfig
    config_class = DiTConfig

    def __init__(self, config: DiTConfig) -> None:
        super().__init__(config)
        self.position_embed: PositionEmbedding | None = None
        if config.absolute_positions:
            self.add_absolute_positions()
        self.learned_positions: LearnedPositions | None = None
        if config.learned_positions:
            self.learned_positions = LearnedPositions(config.max_length + config.shifted, config.hidden_size)
        self.annealing: AttentionAnnealing | None = None
        """The attention in training, if it becomes bidirectional then."""

    def add_absolute_positions(self) -> None:
        """Add absolute position embeddings, which have no effect before training, if there are none."""
        self.config.absolute_positions = True
        self.position_embed = self.position_embed or PositionEmbedding(self.config.hidden_size, self.config.rope_base)

    def _embed(self, input_ids: Tensor) -> Tensor:
        x = self.vocab_embed(input_ids)
        for positions in (self.position_embed, self.learned_positions):
            x = x if positions is None else x + positions(x.shape[1]).to(x.dtype)
        return x

    def _rows(
        self,
        input_ids: Tensor,
        alpha: Tensor | None,
        attention_mask: Tensor | None,
        positions: Tensor | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        def run(ids: Tensor, attention_mask: Tensor | None, positions: Tensor | None) -> Tensor:
            return super(DiT, self)._rows(ids, alpha, attention_mask, positions, states)

        if self.config.shifted:
            return shifted_rows(run, self.config.begin_token_id, input_ids, attention_mask, positions)
        return run(input_ids, attention_mask, positions)

    def _block_inputs(self, length: int, attention_mask: Tensor | None) -> tuple[Rotary, AttentionMask]:
        rotary = self._rotary(length)
        if self.learned_positions is not None:  # they replace the rotary ones
            rotary = Rotary(torch.ones_like(rotary.cos), torch.zeros_like(rotary.sin))
        if self.annealing is not None and self.training:
            return rotary, self.annealing.mask(length, attention_mask)
        return rotary, bidirectional_mask(attention_mask)


def missing_planner_error(checkpoint: Path | str | None = None) -> UnmaskError:
    """The error for a network without a planner."""
    network = "This network" if checkpoint is None else f"'{checkpoint}'"
    return UnmaskError(
        f"{network} has no planner to order positions by; train one with "
        f"'unmask train planner --from {checkpoint or 'CKPT'}'."
    )
