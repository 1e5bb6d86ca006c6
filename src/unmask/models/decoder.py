"""Autoregressive networks as denoisers: Hugging Face decoders without their causal mask, and the spec to adapt them.

An adapted network keeps the shift of its targets: position i is predicted from the row of position i - 1, as in
DiffuLLaMA (arXiv 2410.17891) and Dream. Its attention becomes bidirectional while it is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils.generic import can_return_tuple

from unmask.errors import UnmaskError
from unmask.io import read_json, reading
from unmask.models.attention import AttentionAnnealing, bidirectional_mask
from unmask.models.build import (
    LoraConfig,
    add_lora,
    check_published_sizes,
    load_network,
    read_config,
    silence_transformers,
    wrong_tokenizer_error,
)
from unmask.models.config import CAUSAL_TYPES, AutoregressiveConfig, CausalConfig, DiTConfig
from unmask.models.cross_entropy import Projection
from unmask.models.dit import DiT
from unmask.models.layers import check_input, continue_with_masks, exclude_token, product_dtype, rows_at, shifted_rows
from unmask.registry import Component

UNUSED_FIELDS = ("architectures", "auto_map", "quantization_config", "_name_or_path", "transformers_version")


class DecoderConfig(PretrainedConfig):
    """A Hugging Face decoder as a denoiser.

    Args:
        decoder: The configuration of the decoder, with its `model_type`, as in its own config.json.
        mask_token_id: The mask token; by default the last token of the vocabulary.
        max_length: Longest sequence; by default the positions of the decoder, without the begin token.
        shifted: Whether position i is predicted from the row of position i - 1.
        begin_token_id: The token before position 0 of a shifted network, which the network adds itself; with None
            position 0 is predicted from its own row.
        mask_logit: Whether ``forward`` returns an ordinary logit for the mask token instead of -inf.
        row_length: See `MaskedConfig`.
        kwargs: The fields of `PretrainedConfig`.
    """

    model_type = "unmask-decoder"
    conditioned: ClassVar[bool] = False
    planner_width: ClassVar[None] = None
    max_length: int = 1024

    def __init__(
        self,
        decoder: dict[str, Any] | None = None,
        mask_token_id: int | None = None,
        max_length: int | None = None,
        shifted: bool = False,
        begin_token_id: int | None = None,
        mask_logit: bool = False,
        row_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"tie_word_embeddings": False, **kwargs})
        self.decoder = dict(decoder or {"model_type": "llama"})
        inner = self.decoder_config()
        self.vocab_size: int = inner.vocab_size
        self.hidden_size: int = inner.hidden_size
        self.num_hidden_layers: int = inner.num_hidden_layers
        self.mask_token_id = self.vocab_size - 1 if mask_token_id is None else mask_token_id
        positions = inner.max_position_embeddings - (begin_token_id is not None)
        self.max_length = positions if max_length is None else max_length
        self.shifted = shifted
        self.begin_token_id = begin_token_id
        self.mask_logit = mask_logit
        self.row_length = row_length
        for name in ("mask_token_id", "begin_token_id"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.vocab_size:
                raise UnmaskError(f"{name} must be from 0 to {self.vocab_size - 1}, got {token}.")

    @property
    def learned_positions(self) -> bool:
        """Whether each position has a learned vector, so that no sequence can be longer than these."""
        return self.decoder["model_type"] == "gpt2"

    def decoder_config(self) -> Any:
        """The Hugging Face configuration of the decoder, with bidirectional attention."""
        fields = {name: value for name, value in self.decoder.items() if name not in UNUSED_FIELDS}
        kind = fields.pop("model_type", None)
        if kind not in CAUSAL_TYPES:
            raise UnmaskError(f"decoder.model_type must be one of {', '.join(CAUSAL_TYPES)}, got {kind!r}.")
        config = CONFIG_MAPPING[kind](**fields)
        config.is_causal = False
        config.use_cache = False
        return config


class Decoder(PreTrainedModel):
    """A Hugging Face causal LM whose queries see all keys, with the interface of `DiT`; unconditioned."""

    config: DecoderConfig
    config_class = DecoderConfig
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _supports_sdpa = True
    supports_cuda_graphs: ClassVar[bool] = False
    """The network of transformers may read tensors on the host, which a graph cannot record."""
    keeps_dtype: ClassVar[bool] = True
    """`unmask.load` keeps the dtype of the files, since these networks are large."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.decoder: Any = AutoModelForCausalLM.from_config(config.decoder_config(), attn_implementation="sdpa")
        self._no_split_modules = self.decoder._no_split_modules
        for module in self.decoder.modules():
            if hasattr(module, "is_causal"):
                module.is_causal = False
        self.annealing: AttentionAnnealing | None = None
        """The attention in training, if it becomes bidirectional then."""
        self.fused = False
        self.planner = None
        self.loss_type = "ForMaskedLM"
        self.post_init()

    @property
    def blocks(self) -> Any:
        base = self.decoder.base_model
        return base.h if hasattr(base, "h") else base.layers

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder.get_output_embeddings()

    def hidden(self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        """The hidden states [B, L, D], the input of `head`; see `DiT.hidden`. ``alpha`` is ignored."""
        return self._rows(input_ids, attention_mask, None)

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at positions [B, K] of each sequence only, [B, K, D]."""
        return self._rows(input_ids, attention_mask, positions)

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Logits [..., V] of hidden states [..., D]; the logit of the mask token is -inf unless ``mask_logit``."""
        layer: Any = self.decoder.get_output_embeddings()
        logits = layer(rows.to(layer.weight.dtype))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return exclude_token(logits, None if mask_logit else self.config.mask_token_id)

    def projection(self) -> Projection:
        """Weight and bias of `head`, without the mask token, for losses that never store all logits."""
        weight = self.decoder.get_output_embeddings().weight
        bias = exclude_token(weight.new_zeros(len(weight)), self.config.mask_token_id)
        return Projection(weight, bias, product_dtype(weight), self.fused)

    def cast_trunk(self, dtype: torch.dtype) -> None:
        """Cast everything but the output layer, which is untied from the embedding if they shared weights."""
        layer: Any = self.decoder.get_output_embeddings()
        tied = layer.weight is self.get_input_embeddings().weight
        if tied and layer.weight.dtype != dtype:
            layer.weight = nn.Parameter(layer.weight.detach().clone())
        nn.Module.to(self.decoder.base_model, dtype)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MaskedLMOutput:
        """Logits [B, L, V] of the tokens at every position; with ``labels`` their mean cross-entropy where not -100."""
        ids, length, width = input_ids, self.config.row_length, input_ids.shape[1]
        if length is not None:
            ids, attention_mask = continue_with_masks(ids, attention_mask, length, self.config.mask_token_id), None
        logits = self.head(self._rows(ids, attention_mask, None)[:, :width], self.config.mask_logit)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, logits.shape[-1], num_items_in_batch=num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits)  # type: ignore[arg-type]

    def _rows(self, input_ids: Tensor, attention_mask: Tensor | None, positions: Tensor | None) -> Tensor:
        """The hidden states [B, L, D] that predict the tokens, or [B, K, D] at positions [B, K] alone."""
        check_input(input_ids, attention_mask, self.config.max_length)

        def run(ids: Tensor, attention_mask: Tensor | None, positions: Tensor | None) -> Tensor:
            if self.annealing is not None and self.training:
                mask = self.annealing.mask(ids.shape[1], attention_mask)
            else:
                mask = bidirectional_mask(attention_mask)
            seen = mask.mask if mask.mask is None else mask.mask.expand(-1, -1, ids.shape[1], -1)
            rows = self.decoder.base_model(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state
            return rows if positions is None else rows_at(rows, positions)

        if self.config.shifted:
            return shifted_rows(run, self.config.begin_token_id, input_ids, attention_mask, positions)
        return run(input_ids, attention_mask, positions)


# ---- adaptation -----------------------------------------------------------------------------------------------------


class AdaptedSpec(Component):
    """An autoregressive network as a denoiser: a causal checkpoint, or a folder of a Hugging Face causal LM."""

    name: Literal["adapted"] = "adapted"
    causal: ClassVar[bool] = False
    path: str
    annealing_steps: int = Field(default=100, ge=0)
    """Training steps until all later tokens are visible: in step s each is with probability s / annealing_steps."""
    dropout: float | None = Field(default=None, ge=0, le=1)
    """Replaces the dropout of a causal checkpoint."""
    lora: LoraConfig | None = None

    def build(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool = False) -> Any:
        """The network in float32 for the vocabulary of its tokenizer, to which a mask token may have been added."""
        path = Path(self.path)
        build = self._build_decoder if is_causal_lm(path) else self._build_dit
        network: Any = build(path, vocab_size, mask_token_id, length, mask_logit)
        network.annealing = AttentionAnnealing(self.annealing_steps)
        return network if self.lora is None else add_lora(network, self.lora)

    def _build_dit(self, path: Path, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool) -> DiT:
        config = read_config(path)
        if not isinstance(config, CausalConfig):
            what = "has no attention" if isinstance(config, AutoregressiveConfig) else "is masked already"
            raise UnmaskError(f"model.path must be an autoregressive transformer, but the network in '{path}' {what}.")
        if (vocab_size, mask_token_id) != (config.vocab_size, config.mask_token_id):
            raise wrong_tokenizer_error(vocab_size, mask_token_id, str(path), config)
        begin = config.bos_token_id
        shared = ("hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio", "rope_base", "qk_norm")
        network = DiT(
            DiTConfig(
                vocab_size=vocab_size,
                mask_token_id=mask_token_id,
                max_length=max(config.max_length, length),
                dropout=config.dropout if self.dropout is None else self.dropout,
                shifted=True,
                begin_token_id=begin,
                mask_logit=mask_logit,
                **{name: getattr(config, name) for name in shared},
            )
        )
        network.load_state_dict(load_network(path, causal=True, config=config).state_dict())
        if begin == mask_token_id:  # a fully masked row would look the same at every position
            network.add_absolute_positions()
        return network

    def _build_decoder(self, path: Path, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool) -> Decoder:
        fields = read_json(path / "config.json")
        check_published_sizes(path)
        with silence_transformers(), reading(f"The network in '{path}' cannot be opened", "restore its files"):
            causal_lm: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, use_safetensors=True, local_files_only=True, trust_remote_code=False
            )
        known = causal_lm.config.vocab_size
        if vocab_size > known:  # the mask token, which starts as the mean of all tokens
            causal_lm.resize_token_embeddings(vocab_size, mean_resizing=False)
            for embedding in (causal_lm.get_input_embeddings(), causal_lm.get_output_embeddings()):
                embedding.weight.data[known:] = embedding.weight.data[:known].mean(dim=0)
        begin = causal_lm.config.bos_token_id
        begin = begin if isinstance(begin, int) and begin < causal_lm.config.vocab_size else None
        config = DecoderConfig(
            decoder={**fields, "vocab_size": causal_lm.config.vocab_size},
            mask_token_id=mask_token_id,
            shifted=True,
            begin_token_id=begin,
            mask_logit=mask_logit,
        )
        if length > config.max_length:
            raise UnmaskError(
                f"data.length must be at most {config.max_length}, the positions of '{path}', got {length}."
            )
        network = Decoder(config)
        network.decoder.load_state_dict(causal_lm.state_dict())
        return network


def is_causal_lm(path: Path) -> bool:
    """Whether a folder holds a Hugging Face causal LM that can become a denoiser."""
    file = path / "config.json"
    return file.is_file() and read_json(file).get("model_type") in CAUSAL_TYPES
