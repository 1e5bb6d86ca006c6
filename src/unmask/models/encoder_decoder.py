"""The encoder-decoder: an encoder reads the source of a row, a decoder writes the rest and attends to it.

A row is a source, up to and including its first separator token, and a target, as the length policy `prompted` makes
them. The encoder sees the source alone, which is frozen, so a sampler encodes it once. The decoder's queries see the
target, and the source through cross-attention.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unmask.data.encoding import encode_one
from unmask.errors import UnmaskError
from unmask.models.attention import AttentionMask, Rotary, attend_at, bidirectional_mask
from unmask.models.build import TransformerSpec
from unmask.models.config import MAX_LAYERS, MaskedConfig, TransformerConfig
from unmask.models.dit import MaskedNetwork, Transformer
from unmask.models.layers import (
    Block,
    LayerNorm,
    PositionEmbedding,
    ZeroLinear,
    check_input,
    product_dtype,
    rows_at,
)

SOURCE_STRIDE = 16
"""`encode_source` returns a multiple of this many positions, so that the network sees few shapes."""


class EncoderDecoderConfig(MaskedConfig, TransformerConfig):
    """The encoder-decoder; `num_hidden_layers` are the blocks of the decoder.

    Args:
        num_encoder_layers: Number of blocks of the encoder.
        separator_token_id: The last token of a source; a row without it is all target.
        absolute_positions: Whether to add absolute position embeddings, counted from the start of source and target.
        kwargs: The fields of `MaskedConfig` and `TransformerConfig`.
    """

    model_type = "unmask-encoder-decoder"

    def __init__(
        self,
        num_encoder_layers: int = 6,
        separator_token_id: int = 0,
        absolute_positions: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_encoder_layers = num_encoder_layers
        self.separator_token_id = separator_token_id
        self.absolute_positions = absolute_positions
        self._check_sizes("num_encoder_layers")
        self._check_token("separator_token_id", separator_token_id)


class CrossInputs(NamedTuple):
    """What cross-attention reads besides the rows of the source.

    `mask` [B, 1, 1, S] is that of the source, `positions` [B, L] are those of the queries in the target, and `exists`
    [B, 1, 1] is False for rows without a source.
    """

    mask: AttentionMask
    positions: Tensor
    exists: Tensor


class CrossBlock(Block):
    """A transformer block with cross-attention between self-attention and the MLP.

    Queries and keys are rotated by their positions in target and source.
    """

    branches: ClassVar[int] = 3

    def __init__(self, config: EncoderDecoderConfig, layer: int, cond_dim: int | None) -> None:
        super().__init__(config, layer, cond_dim)
        width = config.hidden_size
        self.norm_cross = LayerNorm(width, bias=True)
        self.cross_query = nn.Linear(width, width, bias=False)
        self.cross_key_value = nn.Linear(width, 2 * width, bias=False)
        self.cross_out = ZeroLinear(width, width, bias=False)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        cond: Tensor | None,
        rotary: Rotary,
        mask: AttentionMask,
        source_rows: Tensor,
        source: CrossInputs,
        past_key_values: None = None,
        positions: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> Tensor:
        """See `Block.forward`; ``source_rows`` [B, S, D] are the output of the encoder."""

        def read_source(x: Tensor, seeds: Tensor | None) -> Tensor:
            query = self.cross_query(self.norm_cross(x))
            query, key_value = self._split_heads(query, self.cross_key_value(source_rows))
            place = source.positions if positions is None else source.positions.gather(1, positions)
            mixed = attend_at(query, key_value, place, rotary, source.mask) * source.exists.to(query.dtype)
            return x + self.dropout(self.cross_out(mixed), seeds)

        return super().forward(x, cond, rotary, mask, past_key_values, positions, seeds, between=read_source)


class EncoderDecoder(MaskedNetwork, Transformer):
    """An encoder for the source of a row and a decoder with cross-attention for its target.

    The rows of the source are those of the encoder. The encoder does not see alpha.
    """

    config: EncoderDecoderConfig
    config_class = EncoderDecoderConfig
    block_class = CrossBlock  # type: ignore[assignment]

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config)
        self._no_split_modules = [CrossBlock.__name__, Block.__name__]
        blocks = (Block(config, layer, None) for layer in range(config.num_encoder_layers))
        norm = LayerNorm(config.hidden_size, bias=True)
        self.encoder = nn.ModuleDict({"blocks": nn.ModuleList(blocks), "norm": norm})
        self.position_embed: PositionEmbedding | None = None
        if config.absolute_positions:
            self.position_embed = PositionEmbedding(config.hidden_size, config.rope_base)

    @property
    def all_blocks(self) -> list[nn.Module]:
        return [*self.encoder["blocks"], *self.blocks]  # type: ignore[misc]

    def hidden(
        self,
        input_ids: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        """See `DiT.hidden`; ``source`` is the result of `encode_source` for these rows."""
        check_input(input_ids, attention_mask, self.config.max_length)
        return self._rows(input_ids, alpha, attention_mask, source=source)

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at positions [B, K] of each sequence only, [B, K, D], at lower cost."""
        check_input(input_ids, attention_mask, self.config.max_length)
        return self._rows(input_ids, alpha, attention_mask, positions, source=source)

    @torch.no_grad()
    def encode_source(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor | None:
        """The output [B, S, D] of the encoder for the sources of rows [B, L], as `hidden` takes it.

        None if a row has no source, or a mask in its source, which a sampler may then change.
        """
        size = self._source_size(input_ids)
        in_source = torch.arange(input_ids.shape[1], device=input_ids.device) < size[:, None]
        if bool((size == 0).any() | (in_source & (input_ids == self.config.mask_token_id)).any()):
            return None
        width = min(input_ids.shape[1], -(-int(size.max()) // SOURCE_STRIDE) * SOURCE_STRIDE)
        return self._encode(input_ids[:, :width], None if attention_mask is None else attention_mask[:, :width])

    def cast_trunk(self, dtype: torch.dtype) -> None:
        """Cast everything but the final norm and the head."""
        for module in (self.vocab_embed, self.encoder, self.blocks):
            module.to(dtype)

    def _source_size(self, input_ids: Tensor) -> Tensor:
        """[B] the number of tokens up to and including the first separator; 0 without one."""
        is_separator = input_ids == self.config.separator_token_id
        return torch.where(is_separator.any(dim=1), is_separator.long().argmax(dim=1) + 1, 0)

    def _encode(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """[B, S, D] the rows of the encoder for ids [B, S]; only those of the source are meaningful."""
        keys = torch.arange(input_ids.shape[1], device=input_ids.device) < self._source_size(input_ids)[:, None]
        keys = keys if attention_mask is None else keys & attention_mask.bool()
        rotary, mask = self._rotary(input_ids.shape[1]), bidirectional_mask(keys)
        x = self._embed(input_ids).to(product_dtype(self.vocab_embed.embedding))
        blocks: Any = self.encoder["blocks"]
        for block, seeds in zip(blocks, self._dropout_seeds(x.device, blocks), strict=True):
            x = block(x, None, rotary, mask, seeds=seeds)
        return self.encoder["norm"](x)

    def _rows(
        self,
        input_ids: Tensor,
        alpha: Tensor | None,
        attention_mask: Tensor | None,
        positions: Tensor | None = None,
        states: list[Tensor] | None = None,
        source: Tensor | None = None,
    ) -> Tensor:
        length = input_ids.shape[1]
        encoded = self._encode(input_ids, attention_mask) if source is None else source
        size, index = self._source_size(input_ids)[:, None], torch.arange(length, device=input_ids.device)
        seen = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        in_source = index < size
        keys = (in_source & seen)[:, : encoded.shape[1]]
        cross = CrossInputs(bidirectional_mask(keys), (index - size).clamp_min(0), (size > 0)[:, :, None])
        inputs = self._rotary(length), bidirectional_mask(seen & ~in_source), encoded, cross
        cond = self._condition(alpha, input_ids.device)
        rows = self._run(input_ids, inputs, cond, positions=positions, states=states)
        own = F.pad(encoded, (0, 0, 0, length - encoded.shape[1]))
        if positions is not None:
            own, in_source = rows_at(own, positions), in_source.gather(1, positions)
        rows = torch.where(in_source[:, :, None], own.to(rows.dtype), rows)
        if states is not None:
            states[-1] = rows
        return rows

    def _embed(self, input_ids: Tensor) -> Tensor:
        x = self.vocab_embed(input_ids)
        if self.position_embed is None:
            return x
        length, size = input_ids.shape[1], self._source_size(input_ids)[:, None]
        index = torch.arange(length, device=input_ids.device)
        return x + self.position_embed(length).to(x.dtype)[torch.where(index < size, index, index - size)]


class EncoderDecoderSpec(TransformerSpec):
    """A fresh encoder-decoder for rows of a source, a separator and a target.

    Its blocks have about as many weights as those of a DiT with the same `size` or `layers`: the encoder gets half of
    the layers, and the decoder, whose blocks have a third more weights, three for every four of the other half.
    """

    name: Literal["encoder-decoder"] = "encoder-decoder"
    encoder_layers: int | None = Field(default=None, ge=1, le=MAX_LAYERS)
    decoder_layers: int | None = Field(default=None, ge=1, le=MAX_LAYERS)
    absolute_positions: bool = False
    """Whether to add absolute positions, counted from the start of source and target."""
    separator: str = "\t"
    """The token that ends the source; it must be that of data.policy."""

    def token_options(self, tokenizer: Any) -> dict[str, Any]:
        """The options of `build` that depend on the tokenizer."""
        ids = encode_one(tokenizer, self.separator)
        if len(ids) != 1:
            raise UnmaskError(f"model.separator must be a single token, got {self.separator!r}, which is {len(ids)}.")
        return {"separator_token_id": ids[0]}

    def build(
        self,
        vocab_size: int,
        mask_token_id: int,
        length: int,
        mask_logit: bool = False,
        separator_token_id: int = 0,
    ) -> EncoderDecoder:
        """A network for a vocabulary of vocab_size tokens (including the mask) and rows of up to length tokens."""
        fields = self._config_fields(vocab_size, mask_token_id, length)
        layers = fields.pop("num_hidden_layers")
        encoder_layers = self.encoder_layers or max(1, layers // 2)
        config = EncoderDecoderConfig(
            num_hidden_layers=self.decoder_layers or max(1, round(3 * (layers - encoder_layers) / 4)),
            num_encoder_layers=encoder_layers,
            separator_token_id=separator_token_id,
            absolute_positions=self.absolute_positions,
            mask_logit=mask_logit,
            **fields,
        )
        return EncoderDecoder(config)
