"""Hugging Face masked language models (BERT, RoBERTa, DistilBERT, ELECTRA, DeBERTa, ModernBERT, ...) as denoisers.

The network is that of transformers, and what is saved opens as an `AutoModelForMaskedLM`, without unmask. Rows contain
text alone: the encoder itself puts the special tokens of its pre-training, [CLS] and [SEP], around each row. So they
are never masked, predicted or counted, and take two of its positions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from os import PathLike
from types import MethodType
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from unmask.errors import UnmaskError
from unmask.models.config import MAX_LAYERS
from unmask.models.cross_entropy import Projection
from unmask.models.layers import check_input, exclude_token, product_dtype, rows_at
from unmask.registry import Component

Architecture = Literal["bert", "roberta", "distilbert", "electra", "deberta-v2", "modernbert"]
FRAME = 2
"""Special tokens around a row."""
SPECIAL_TOKENS = ("mask_token_id", "cls_token_id", "sep_token_id")
"""Fields that are added to config.json, so that a checkpoint opens without its tokenizer."""
UNDECLARED = (
    *SPECIAL_TOKENS, "attention_head_size", "conv_act", "conv_kernel_size", "global_attn_every_n_layers",
    "global_rope_theta", "local_rope_theta", "norm_rel_ebd", "position_buckets", "rope_theta", "share_att_key",
)  # fmt: skip
"""Fields of config.json that networks read and that their configuration classes do not declare."""


@dataclass
class EncoderConfig:
    """The configuration of a denoiser that is a network of transformers; `network` is the content of config.json."""

    network: PretrainedConfig
    mask_token_id: int
    frame: tuple[int, int] | None
    """The tokens before and after each row, or None."""
    positions: int
    """The longest input of the network, special tokens included."""
    hidden_size: int
    """Width of the rows that `Encoder.head` reads."""
    mask_logit: bool = False
    conditioned: ClassVar[bool] = False
    planner_width: ClassVar[None] = None

    @classmethod
    def of(cls, network: PreTrainedModel, mask_token_id: int, frame: tuple[int, int] | None = None) -> EncoderConfig:
        """The configuration of a network, which may be on the meta device."""
        config: Any = network.config
        config.mask_token_id = mask_token_id
        config.cls_token_id, config.sep_token_id = frame or (None, None)
        return cls(config, mask_token_id, frame, _count_positions(network), _output_projection(network)[0].shape[1])

    @property
    def vocab_size(self) -> int:
        """Tokens that the network has an embedding for; often a few more than its tokenizer has."""
        return self.network.vocab_size  # type: ignore[attr-defined]

    @property
    def num_hidden_layers(self) -> int:
        return self.network.num_hidden_layers  # type: ignore[attr-defined]

    @property
    def max_length(self) -> int:
        """Tokens of the longest row, without the special tokens around it."""
        return self.positions - (FRAME if self.frame else 0)

    def set_dropout(self, rate: float) -> None:
        """Set every dropout rate of the network to be built."""
        for name, value in vars(self.network).items():
            if "dropout" in name and isinstance(value, int | float):
                setattr(self.network, name, rate)


class Encoder(nn.Module):
    """A masked language model of transformers as a denoiser; it does not see alpha.

    The output layer of `network` returns its input: these are the rows of `hidden`, and `head` projects them to the
    vocabulary.
    """

    config: EncoderConfig
    supports_cuda_graphs: ClassVar[bool] = False
    """transformers reads the attention mask on the host, which a graph cannot record."""

    def __init__(self, network: PreTrainedModel, config: EncoderConfig) -> None:
        super().__init__()
        self.network = network
        self.config = config
        self.fused = False
        """Whether losses use compiled kernels."""
        self._no_split_modules = network._no_split_modules
        self._kept_projection: tuple[Tensor, Tensor | None] | None = None
        self._first_position = _first_position(network)
        _return_rows(network)

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights below the output layer."""
        return self.network.dtype

    @property
    def input_names(self) -> list[str]:
        """The outputs of a tokenizer that the network takes; segments only if it was trained with two."""
        segments = getattr(self.config.network, "type_vocab_size", 0) > 1
        return ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks."""
        lists = (module for module in self.network.base_model.modules() if isinstance(module, nn.ModuleList))
        return max(lists, key=lambda modules: sum(parameter.numel() for parameter in modules.parameters()))

    def hidden(
        self,
        input_ids: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
        framed: bool = True,
    ) -> Tensor:
        """The hidden states [B, L, D], the input of `head`.

        Args:
            input_ids: Tokens and masks, [B, L], without the special tokens around a row.
            alpha: Ignored.
            attention_mask: True (or 1) at tokens and False at padding, which follows the tokens, [B, L]; None without
                padding.
            framed: False if `input_ids` has the special tokens already, as a tokenizer of transformers adds them.
        """
        check_input(input_ids, attention_mask, self.config.max_length if framed else self.config.positions)
        ids, mask = input_ids, attention_mask
        if framed and self.config.frame is not None:
            ids, mask = add_frame(ids, mask, *self.config.frame)
        options: dict[str, Tensor] = {} if mask is None else {"attention_mask": mask.long()}
        if self._first_position:  # else transformers would count from the padding tokens that it finds in a row
            positions = torch.arange(ids.shape[1], device=ids.device) + self._first_position
            options["position_ids"] = positions.expand(ids.shape)
        rows = self.network(input_ids=ids, return_dict=True, **options).logits
        if rows.shape[-1] != self.config.hidden_size:  # MobileBERT uses the weights of the layer itself
            raise _no_output_layer(self.network)
        return rows if ids is input_ids else rows[:, 1:-1]

    def hidden_at(
        self,
        input_ids: Tensor,
        positions: Tensor,
        alpha: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at positions [B, K] of each sequence, [B, K, D]."""
        return rows_at(self.hidden(input_ids, alpha, attention_mask), positions)

    def head(self, rows: Tensor, mask_logit: bool = False) -> Tensor:
        """Logits [..., V] of hidden states [..., D]; the logit of the mask token is -inf unless ``mask_logit``."""
        weight, bias = self._weight_and_bias(mask_logit)
        return F.linear(rows.to(weight.dtype), weight, bias)

    def projection(self) -> Projection:
        """Weight and bias of `head`, without the mask token, for losses that never store all logits."""
        weight, bias = self._weight_and_bias(mask_logit=False)
        return Projection(weight, bias, product_dtype(weight), self.fused)

    def forward(
        self, input_ids: Tensor, alpha: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> MaskedLMOutput:
        """Logits [B, L, V] at every position of rows without special tokens."""
        rows = self.hidden(input_ids, alpha, attention_mask)
        return MaskedLMOutput(logits=self.head(rows, self.config.mask_logit))  # type: ignore[arg-type]

    def cast_trunk(self, dtype: torch.dtype) -> None:
        """Cast everything to a dtype but the output layer, which is untied from the embedding if it shared weights."""
        weight, bias = _output_projection(self.network)
        kept = weight.detach().clone(), None if bias is None else bias.detach().clone()
        nn.Module.to(self.network, dtype)
        self._kept_projection = kept

    def save_pretrained(
        self, folder: str | PathLike[str], state_dict: dict[str, Tensor] | None = None, **options: Any
    ) -> None:
        """Write config.json and weights as `AutoModelForMaskedLM` of plain transformers reads them."""
        state = self.state_dict() if state_dict is None else state_dict
        tied = self.network.all_tied_weights_keys
        plain = {name.removeprefix("network."): tensor for name, tensor in state.items()}
        plain = {name: tensor for name, tensor in plain.items() if tied.get(name) not in plain}
        self.network.save_pretrained(folder, state_dict=plain, **options)

    def gradient_checkpointing_enable(self, **options: Any) -> None:
        self.network.gradient_checkpointing_enable(**options)

    def get_input_embeddings(self) -> nn.Module:
        return self.network.get_input_embeddings()

    def _weight_and_bias(self, mask_logit: bool) -> tuple[Tensor, Tensor]:
        weight, bias = self._kept_projection or _output_projection(self.network)
        bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
        return weight, exclude_token(bias, None if mask_logit else self.config.mask_token_id)


def add_frame(input_ids: Tensor, attention_mask: Tensor | None, first: int, last: int) -> tuple[Tensor, Tensor | None]:
    """[B, L + 2] rows between two special tokens, the second one directly after the text, and their attention mask."""
    framed = F.pad(input_ids, (1, 1), value=last)
    framed[:, 0] = first
    if attention_mask is None:
        return framed, None
    size = attention_mask.long().sum(dim=1, keepdim=True)
    framed = framed.scatter(1, size + 1, last)
    return framed, torch.arange(framed.shape[1], device=framed.device) <= size + 1


# ---- differences between the networks of transformers ---------------------------------------------------------------


def _output_projection(network: Any) -> tuple[Tensor, Tensor | None]:
    """Weight [V, D] and bias [V] of the layer that writes the logits."""
    if hasattr(network, "lm_predictions"):  # DeBERTa with its own weights: the embedding, used as a matrix
        return network.get_input_embeddings().weight, network.lm_predictions.lm_head.bias
    layer = network.get_output_embeddings()
    linear = isinstance(layer, nn.Linear) and layer.out_features == network.config.vocab_size
    around = [module for module in network.modules() if layer in module.children()]
    has_bias = any(isinstance(getattr(module, "bias", None), nn.Parameter) for module in around)
    adds_bias = linear and layer.bias is None and has_bias  # as in ESM; that of BERT is the layer's own bias
    if not linear or adds_bias or network.config.is_encoder_decoder:
        raise _no_output_layer(network)
    return layer.weight, layer.bias


def _no_output_layer(network: nn.Module) -> UnmaskError:
    return UnmaskError(
        f"{type(network).__name__} does not end in a linear layer that writes logits, so unmask cannot use it; "
        "choose another masked language model, such as BERT."
    )


def _return_rows(network: Any) -> None:
    """Let the output layer return its input, so that `network(...).logits` are the rows that it would project."""
    if hasattr(network, "lm_predictions"):
        layer = network.lm_predictions.lm_head
        layer.forward = MethodType(_transform, layer)  # a bound method, so that a deep copy gets one of its own
    else:
        network.get_output_embeddings().forward = _same


def _same(rows: Tensor) -> Tensor:
    return rows


def _transform(layer: Any, rows: Tensor, embedding: Tensor) -> Tensor:
    return layer.LayerNorm(layer.transform_act_fn(layer.dense(rows)))


def _position_embedding(network: nn.Module) -> nn.Embedding | None:
    named = (module for name, module in network.named_modules() if name.endswith("position_embeddings"))
    return next((module for module in named if isinstance(module, nn.Embedding)), None)


def _first_position(network: nn.Module) -> int:
    """The position of the first token: RoBERTa and its relatives count from the id of the padding token plus one."""
    padding = getattr(_position_embedding(network), "padding_idx", None)
    return 0 if padding is None else padding + 1


def _count_positions(network: Any) -> int:
    embedding = _position_embedding(network)
    positions = network.config.max_position_embeddings if embedding is None else embedding.num_embeddings
    return positions - _first_position(network)


# ---- configurations -------------------------------------------------------------------------------------------------


def masked_lm_class(config_class: type) -> Any:
    """The masked language model that the Auto classes have for a configuration, or None."""
    return AutoModelForMaskedLM._model_mapping.get(config_class, None)


def parse_config(config_class: type[PretrainedConfig], values: dict[str, Any]) -> PretrainedConfig:
    """The configuration of a bidirectional network from config.json.

    Only what describes the network is read, so that nothing else in the file, such as `auto_map`, `dtype` or
    `quantization_config`, has an effect.
    """
    common = {field.name for field in fields(PretrainedConfig)}  # type: ignore[arg-type]
    declared = {field.name for field in fields(config_class)} - common  # type: ignore[arg-type]
    known = {name: value for name, value in values.items() if name in declared | {*UNDECLARED}}
    known |= {name: False for name in ("is_decoder", "add_cross_attention") if name in declared}
    return config_class(**known)


def read_special_tokens(config: Any, tokenizer: Any) -> tuple[int | None, tuple[int, int] | None]:
    """The mask token and the frame of a network: those in its configuration, or those of its tokenizer."""
    mask = getattr(config, "mask_token_id", None)
    source = config if mask is not None else tokenizer
    frame = getattr(source, "cls_token_id", None), getattr(source, "sep_token_id", None)
    return (
        mask if mask is not None else getattr(tokenizer, "mask_token_id", None),
        None if None in frame else frame,  # type: ignore[return-value]
    )


class EncoderSpec(Component):
    """A fresh encoder with an architecture of transformers; the defaults are the sizes of BERT-base."""

    name: Literal["encoder"] = "encoder"
    causal: ClassVar[bool] = False
    architecture: Architecture = "bert"
    hidden_size: int = Field(default=768, ge=1)
    layers: int = Field(default=12, ge=1, le=MAX_LAYERS)
    heads: int = Field(default=12, ge=1)
    dropout: float = Field(default=0.1, ge=0, le=1)

    def token_options(self, tokenizer: Any) -> dict[str, Any]:
        """The options of `build` that depend on the tokenizer."""
        _, frame = read_special_tokens(None, tokenizer)
        return {"frame": frame, "pad_token_id": tokenizer.pad_token_id}

    def build(
        self,
        vocab_size: int,
        mask_token_id: int,
        length: int,
        mask_logit: bool = False,
        frame: tuple[int, int] | None = None,
        pad_token_id: int | None = None,
    ) -> Encoder:
        """A network for a vocabulary of vocab_size tokens (including the mask) and rows of up to length tokens."""
        if self.hidden_size % self.heads:
            raise UnmaskError(
                f"model.hidden_size must be a multiple of model.heads, {self.heads}, got {self.hidden_size}."
            )
        positions = length + FRAME
        if self.architecture == "roberta":  # see `_first_position`
            pad_token_id = 1 if pad_token_id is None else pad_token_id
            positions += pad_token_id + 1
        options: dict[str, Any] = {
            "vocab_size": vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.hidden_size,
            "max_position_embeddings": positions,
            "pad_token_id": pad_token_id,
            "bos_token_id": None,
            "eos_token_id": None,
        }
        if self.architecture == "distilbert":
            options["hidden_dim"] = options.pop("intermediate_size")
        elif self.architecture == "electra":
            options["embedding_size"] = self.hidden_size
        elif self.architecture == "deberta-v2":
            options |= {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"]}
            options |= {"norm_rel_ebd": "layer_norm", "share_att_key": True}
        elif self.architecture == "modernbert":
            options |= {"cls_token_id": None, "sep_token_id": None}
            options["intermediate_size"] = 3 * self.hidden_size // 2  # each of the two halves of a gated unit
        config_class = CONFIG_MAPPING[self.architecture]
        hf_config = config_class(**options)
        for name in [name for name in vars(hf_config) if "dropout" in name]:
            setattr(hf_config, name, self.dropout)
        network = masked_lm_class(config_class)(hf_config)
        config = EncoderConfig.of(network, mask_token_id, frame)
        config.mask_logit = mask_logit
        return Encoder(network, config)
