"""Networks from recipes: sizes, fresh networks, checkpoints, LoRA adapters and planners."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

import torch
from huggingface_hub.utils import logging as hub_logging
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from unmask.data.tokenizers import has_tokenizer, load_published
from unmask.errors import UnmaskError, did_you_mean
from unmask.io import CHECKSUMS, is_intact, read_json, reading
from unmask.models.causal import CausalLM
from unmask.models.config import (
    CAUSAL_TYPES,
    MAX_LAYERS,
    AutoregressiveConfig,
    CausalConfig,
    DiTConfig,
    NetworkConfig,
)
from unmask.models.dit import DiT
from unmask.models.encoder import Encoder, EncoderConfig, masked_lm_class, parse_config, read_special_tokens
from unmask.models.layers import Dropout, PlannerHead
from unmask.registry import Component

Size = Literal["nano", "tiny", "small", "medium"]

SIZES: dict[Size, dict[str, int]] = {
    "nano": {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4},
    "tiny": {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8},
    "small": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    "medium": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16},
}


class LoraConfig(BaseModel):
    """A LoRA adapter: W becomes W + (alpha / rank) B A, where A has `rank` rows; `dropout` applies before A."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: list[str] | None = Field(default=None, min_length=1)
    """The matrices of every block to adapt, such as attn_qkv or mlp.0; None is all except the conditioning."""


class PlannerConfig(BaseModel):
    """The options of a planner head: the `width` of its hidden layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(default=128, ge=1)


class TransformerSpec(Component):
    """The size of a transformer, and overrides of its fields."""

    causal: ClassVar[bool] = False
    """Whether the network is autoregressive."""

    size: Size = "small"
    hidden_size: int | None = Field(default=None, ge=1)
    layers: int | None = Field(default=None, ge=1, le=MAX_LAYERS)
    heads: int | None = Field(default=None, ge=1)
    dropout: float = Field(default=0.1, ge=0, le=1)
    qk_norm: bool = False
    """Whether to normalise queries and keys, which allows higher learning rates; not in published weights."""

    def _config_fields(self, vocab_size: int, mask_token_id: int, length: int) -> dict[str, Any]:
        overrides = {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
        }
        return {
            **SIZES[self.size],
            **{name: value for name, value in overrides.items() if value is not None},
            "dropout": self.dropout,
            "qk_norm": self.qk_norm,
            "vocab_size": vocab_size,
            "mask_token_id": mask_token_id,
            "max_length": length,
        }


class DiTSpec(TransformerSpec):
    """A fresh bidirectional denoiser, unconditioned by default."""

    name: Literal["dit"] = "dit"
    conditioned: bool = False
    modulated: bool = False
    """Whether an unconditioned network is modulated (adaLN-zero) at a constant sigma = 0, as in the published runs."""
    cond_dim: int = Field(default=128, ge=1)
    absolute_positions: bool = False
    """Whether to add absolute positions, for rows that each hold one text; not in published weights."""
    learned_positions: bool = False
    """Whether a learned vector per position replaces the rotary embeddings, as in BERT; not in published weights."""

    def build(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool = False) -> DiT:
        """A network for a vocabulary of vocab_size tokens (including the mask) and sequences of up to length tokens."""
        config = DiTConfig(
            conditioned=self.conditioned,
            modulated=self.modulated,
            cond_dim=self.cond_dim,
            mask_logit=mask_logit,
            absolute_positions=self.absolute_positions,
            learned_positions=self.learned_positions,
            **self._config_fields(vocab_size, mask_token_id, length),
        )
        return DiT(config)


class CausalSpec(TransformerSpec):
    """A fresh autoregressive model, whose sequences begin with the mask token."""

    name: Literal["causal"] = "causal"
    causal: ClassVar[bool] = True

    def build(self, vocab_size: int, mask_token_id: int, length: int) -> CausalLM:
        """A network for a vocabulary of vocab_size tokens (including the mask) and sequences of up to length tokens."""
        return CausalLM(CausalConfig(**self._config_fields(vocab_size, mask_token_id, length)))


class CheckpointSpec(Component):
    """A trained network from its folder. Training continues with all of it, a LoRA adapter, or a planner head."""

    name: Literal["checkpoint"] = "checkpoint"
    path: str
    lora: LoraConfig | None = None
    planner: PlannerConfig | None = None
    dropout: float | None = Field(default=None, ge=0, le=1)
    """Replaces the dropout in the checkpoint."""
    absolute_positions: bool = False
    """Whether to add absolute positions, which have no effect before training."""

    @property
    def causal(self) -> bool:
        """Whether the network is autoregressive."""
        return isinstance(read_config(Path(self.path)), AutoregressiveConfig)

    def build(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool = False) -> Any:
        """The network in float32. The vocabulary must be that of the checkpoint; `length` may be longer."""
        config = read_config(Path(self.path))
        encoder, causal = isinstance(config, EncoderConfig), isinstance(config, AutoregressiveConfig)
        exactly = isinstance(config, NetworkConfig)  # networks of transformers often have more embeddings than tokens
        fits = vocab_size == config.vocab_size if exactly else vocab_size <= config.vocab_size
        if not fits or mask_token_id != config.mask_token_id:
            raise wrong_tokenizer_error(vocab_size, mask_token_id, self.path, config)
        if (encoder or getattr(config, "learned_positions", False)) and length > config.max_length:
            raise UnmaskError(
                f"data.length must be at most {config.max_length}, the positions that the network in '{self.path}' has "
                f"learned, got {length}."
            )
        if encoder:
            return self._build_encoder(config, mask_logit)
        config.max_length = max(config.max_length, length)
        if self.dropout is not None:
            config.dropout = self.dropout
        if not causal:
            config.mask_logit = mask_logit
            config.planner_width = None
        network = load_network(Path(self.path), causal, config)
        if self.absolute_positions and not causal:
            if not isinstance(network, DiT):
                raise UnmaskError(
                    f"model.absolute_positions must be false: the network in '{self.path}' is a "
                    f"{type(network).__name__}, and only a DiT can have them."
                )
            network.add_absolute_positions()
        if self.planner is not None:
            return attach_planner(network, self.planner)
        return network if self.lora is None else add_lora(network, self.lora)

    def _build_encoder(self, config: EncoderConfig, mask_logit: bool) -> Any:
        for name in ("planner", "absolute_positions"):
            if getattr(self, name):
                raise UnmaskError(
                    f"model.{name} needs a network of unmask, but '{self.path}' is an encoder; leave it out."
                )
        config.mask_logit = mask_logit
        if self.dropout is not None:
            config.set_dropout(self.dropout)
        network = load_network(Path(self.path), causal=False, config=config)
        return network if self.lora is None else add_lora(network, self.lora)


def wrong_tokenizer_error(vocab_size: int, mask_token_id: int, path: str, config: Any) -> UnmaskError:
    """The error for a tokenizer whose tokens are not those of the network in a folder."""
    return UnmaskError(
        f"The tokenizer has {vocab_size} tokens with the mask at {mask_token_id}, but the network in '{path}' has "
        f"{config.vocab_size} with the mask at {config.mask_token_id}; use the tokenizer of the checkpoint."
    )


# ---- planners and adapters ------------------------------------------------------------------------------------------


def attach_planner(network: Any, planner: PlannerConfig) -> Any:
    """Add a fresh planner to a network, freeze everything else and turn its dropout off."""
    network.requires_grad_(False)
    for module in network.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    network.planner = PlannerHead(network.config.row_size, planner.width)
    network.config.planner_width = planner.width
    return network


_BLOCK_LAYER = re.compile(r"(?:^|\.)(?:blocks|layers?|h)\.\d+\.(.+)")
_ADAPTER = "default"


def add_lora(network: nn.Module, lora: LoraConfig) -> nn.Module:
    """Add LoRA adapters, which have no effect before training, and freeze everything else."""
    try:
        import peft
    except ImportError as error:
        raise UnmaskError("model.lora needs the package peft; run: pip install 'unmask[lora]'.") from error

    # the full name of every linear layer in a block, to its name within the block
    layers = {
        name: match[1]
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and (match := _BLOCK_LAYER.search(name)) and "filter." not in name
    }
    known = set(layers.values())
    targets = {name for name in known if "adaLN_modulation" not in name} if lora.targets is None else set(lora.targets)
    if unknown := sorted(targets - known):
        hint = did_you_mean(unknown[0], known)
        raise UnmaskError(f"The network has no matrix '{unknown[0]}' for model.lora.targets.{hint}")
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=[name for name, inner in layers.items() if inner in targets],
    )
    return peft.inject_adapter_in_model(settings, network, adapter_name=_ADAPTER)


def merged_state_dict(network: nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The weights under their plain names with LoRA adapters merged in; `state` replaces the network's own weights."""
    merged = dict(network.state_dict() if state is None else state)
    for name, layer in network.named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        down, up = (merged.pop(f"{name}.{factor}.{_ADAPTER}.weight") for factor in ("lora_A", "lora_B"))
        merged[f"{name}.weight"] = merged.pop(f"{name}.base_layer.weight") + layer.scaling[_ADAPTER] * (up @ down)
        if f"{name}.base_layer.bias" in merged:
            merged[f"{name}.bias"] = merged.pop(f"{name}.base_layer.bias")
    return merged


# ---- reading checkpoints --------------------------------------------------------------------------------------------

WEIGHTS = "model.safetensors"
WEIGHT_INDEX = "model.safetensors.index.json"
RESTORE = "restore the file, fetch it again, or go back to an earlier checkpoint"
STRICT = ConfigDict(strict=True, allow_inf_nan=False)
MAX_LENGTH = 1 << 24
"""Tokens of the longest sequence that a config.json may ask for."""
WEIGHT_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Numbers of eight bits need scales, for which a network has no place."""
VALUES_AT_ONCE = 1 << 24
"""Weights that are checked at a time for values that are not finite."""


def read_config(path: Path) -> Any:
    """The network configuration in a checkpoint folder.

    Only the arguments of the configuration class are read, so that nothing else in the file, such as `auto_map` or
    `quantization_config`, has an effect.
    """
    file = path / "config.json"
    if not file.is_file():
        raise UnmaskError(
            f"There is no checkpoint at '{path}'; give the folder that 'unmask train' or 'convert' wrote."
        )
    fields = read_json(file)
    with reading(f"'{file}' cannot be read", "restore it"):
        kind = fields.get("model_type")
        config_class: Any = CONFIG_MAPPING[kind] if kind in CONFIG_MAPPING.keys() else None  # noqa: SIM118
        if config_class is None and "auto_map" in fields:
            raise ValueError(f"the type {kind!r} needs code from the folder, and unmask does not run it")
        if config_class is None or _denoiser_class(config_class) is None:
            if config_class is not None and masked_lm_class(config_class):
                return _read_encoder_config(path, config_class, fields)
            raise UnmaskError(
                f"unmask has no network of the type {kind!r} ('{path}'); give one of its own, a masked language model "
                f"of transformers, or make one from a causal one ({', '.join(CAUSAL_TYPES)}) with "
                "'unmask train TEXT --from FOLDER'."
            )
        hints: dict[str, Any] = {"pad_token_id": int | None, "eos_token_id": int | None}
        for parent in config_class.__mro__[: config_class.__mro__.index(PretrainedConfig)]:
            hints |= get_type_hints(parent.__init__) if "__init__" in vars(parent) else {}
        values = {name: value for name, value in fields.items() if name in hints.keys() - {"kwargs", "return"}}
        for name, value in values.items():
            try:
                TypeAdapter(hints[name], config=STRICT).validate_python(value)
            except ValidationError as error:
                hint = getattr(hints[name], "__name__", hints[name])
                raise ValueError(f"{name} must be {hint}, got {value!r:.80}") from error
        config = config_class(**values)
        for name in ("max_length", "row_length"):
            if (getattr(config, name, None) or 0) > MAX_LENGTH:
                raise ValueError(f"{name} must be at most {MAX_LENGTH}, got {getattr(config, name)}")
    return config


def _read_encoder_config(path: Path, config_class: Any, fields: dict[str, Any]) -> EncoderConfig:
    """The configuration of a masked language model of transformers; its tokenizer tells the special tokens."""
    config: Any = parse_config(config_class, fields)
    known = has_tokenizer(path)
    tokenizer = load_published(str(path)) if known and not hasattr(config, "mask_token_id") else None
    mask, frame = read_special_tokens(config, tokenizer)
    if mask is None:
        lack = "its tokenizer has no mask token" if known else "it has no tokenizer (tokenizer.json)"
        raise UnmaskError(
            f"The encoder in '{path}' cannot denoise, since {lack}; choose a masked language model with its tokenizer."
        )
    if not isinstance(mask, int) or not 0 <= mask < config.vocab_size:
        raise ValueError(f"the mask token has the id {mask} and the network {config.vocab_size} tokens")
    layers, config.num_hidden_layers = config.num_hidden_layers, 1
    with torch.device("meta"):
        found = EncoderConfig.of(masked_lm_class(config_class)(config), mask, frame)
    config.num_hidden_layers = layers
    if found.positions > MAX_LENGTH:
        raise ValueError(f"max_position_embeddings must be at most {MAX_LENGTH}, got {found.positions}")
    return found


def _denoiser_class(config_class: type, causal: bool | None = None) -> Any:
    """The network that the Auto classes have for a configuration, or None; with `causal`, only one of this kind.

    Networks of transformers, which have no `hidden` and `head`, do not count.
    """
    mappings = {False: AutoModelForMaskedLM._model_mapping, True: AutoModelForCausalLM._model_mapping}
    for mapping in mappings.values() if causal is None else [mappings[causal]]:
        network = mapping.get(config_class, None)
        if hasattr(network, "hidden") and hasattr(network, "head"):
            return network
    return None


def load_network(path: Path, causal: bool, config: Any = None, as_stored: bool = False) -> Any:
    """The network in a folder, in float32. Its weights must be intact and finite, and fit `config` or config.json.

    Names and shapes are compared before anything is allocated. With `as_stored` a network that `keeps_dtype` keeps the
    dtype of its files, which are memory-mapped.
    """
    config = read_config(path) if config is None else config
    encoder = isinstance(config, EncoderConfig)
    plain = config.network if encoder else config
    network = masked_lm_class(type(plain)) if encoder and not causal else _denoiser_class(type(plain), causal)
    if network is None:
        kind = "masked" if causal else "autoregressive"
        raise UnmaskError(f"The network in '{path}' is {kind}, which does not fit the objective in its unmask.json.")
    files = weight_files(path)
    with reading(f"The weights in '{path}' do not fit its config.json", "restore the file that is wrong"):
        shapes = {name: shape for file in files for name, shape in read_shapes(file).items()}
        layers = config.num_hidden_layers + getattr(config, "num_encoder_layers", 0)
        if layers > len(shapes):
            raise ValueError(f"{layers} layers for {len(shapes)} tensors")
        with torch.device("meta"):
            built = network(plain)
            wanted = {name: list(tensor.shape) for name, tensor in built.state_dict().items()}
        for name in wanted:
            if shapes.get(name, wanted[name]) != wanted[name]:
                raise ValueError(f"{name} has the shape {shapes[name]}, not {wanted[name]}")
        stored = sum(map(math.prod, shapes.values()))
        needed = sum(parameter.numel() for parameter in built.parameters())
        if needed > 2 * stored:  # shapes under names of older versions of transformers are not compared above
            raise ValueError(f"{needed} numbers in the network and {stored} in the file")
    weights: dict[str, Tensor] = {}
    dtype = None if as_stored and getattr(network, "keeps_dtype", False) else torch.float32
    for file in files:
        weights |= _read_weights(file, dtype, skip_integers=encoder)
    with silence_transformers(), reading(f"The weights in '{path}' cannot be used", "restore them or train again"):
        model, report = network.from_pretrained(
            None, config=plain, state_dict=weights, dtype=dtype or _common_dtype(weights), output_loading_info=True
        )
    unexpected = () if encoder else report["unexpected_keys"]  # those of an encoder belong to other pre-training heads
    missing = report["missing_keys"]
    if encoder and missing:
        raise UnmaskError(
            f"The network in '{path}' was not saved as a masked language model: it lacks {min(missing)} and "
            f"{len(missing) - 1} more weights; choose one that was, such as the generator of ELECTRA."
        )
    wrong = [*missing, *unexpected, *report["mismatched_keys"]]
    if wrong:
        raise UnmaskError(
            f"The weights in '{path}' do not fit its config.json: {wrong[0]} and {len(wrong) - 1} more keys."
        )
    return Encoder(model, config) if encoder else model


def check_published_sizes(path: Path) -> None:
    """Raise `UnmaskError` unless the numbers of layers and labels in a Hugging Face folder suit its weights.

    transformers would build them all, and run for hours.
    """
    fields = read_json(path / "config.json")
    tensors = sum(len(read_shapes(file)) for file in weight_files(path))
    for name, value in fields.items():
        if ("layer" in name or name == "num_labels") and isinstance(value, int) and value > max(tensors, 1000):
            raise UnmaskError(f"'{path / 'config.json'}' has {name}={value} for {tensors} tensors; restore it.")


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder: model.safetensors, or the files that its index names."""
    if (path / WEIGHTS).exists():
        names = [WEIGHTS]
    elif (path / WEIGHT_INDEX).exists():
        weight_map = read_json(path / WEIGHT_INDEX).get("weight_map")
        names = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []
        if not names or any(Path(name).name != name for name in names):
            raise UnmaskError(f"'{path / WEIGHT_INDEX}' does not list files of its own folder; restore it.")
    elif (path / "pytorch_model.bin").exists():
        raise UnmaskError(
            f"The weights in '{path}' are pickled (pytorch_model.bin), and a pickle can run code; "
            "use safetensors, which 'unmask convert' writes from published weights and transformers from its own."
        )
    else:
        raise UnmaskError(f"The folder '{path}' has no weights ({WEIGHTS}); restore them or train again.")
    for name in names:
        if not (path / name).is_file():
            raise UnmaskError(f"The weights in '{path}' are incomplete: there is no file {name}; restore it.")
    return [path / name for name in names]


def read_shapes(file: Path) -> dict[str, list[int]]:
    """Names and shapes of the tensors in a safetensors file, from its header alone."""
    with (
        reading(f"The weights are damaged: '{file}' cannot be read", RESTORE),
        safe_open(file, framework="pt") as opened,
    ):
        return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118


def _common_dtype(weights: Mapping[str, Tensor]) -> torch.dtype:
    """The dtype of all weights, or float32 if they differ."""
    dtypes = {weight.dtype for weight in weights.values()}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _read_weights(file: Path, dtype: torch.dtype | None, skip_integers: bool) -> dict[str, Tensor]:
    """The weights in a file, memory-mapped if `dtype` is None or theirs.

    With `skip_integers`, buffers such as the positions in older files are left out.
    """
    if not is_intact(file):
        raise UnmaskError(
            f"The weights are damaged: '{file}' does not match its checksum; {RESTORE}. If you changed it yourself, "
            f"delete {CHECKSUMS}."
        )
    with reading(f"The weights are damaged: '{file}' cannot be read", RESTORE):
        weights = load_file(file)
    if skip_integers:
        weights = {name: weight for name, weight in weights.items() if weight.is_floating_point()}
    for name, weight in weights.items():
        if weight.dtype not in WEIGHT_DTYPES:
            raise UnmaskError(f"'{file}' has {name} as {weight.dtype}, not float32, float16 or bfloat16; restore it.")
        if dtype is not None:
            weights[name] = weight = weight.to(dtype)
        if not all(bool(part.isfinite().all()) for part in weight.flatten().split(VALUES_AT_ONCE)):
            raise UnmaskError(f"The weights are damaged: {name} in '{file}' has values that are not finite; {RESTORE}.")
    return weights


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Hide progress bars, tables of weights that a network does not use, and the hub's retries.

    What imports of transformers (DeepSpeed) print goes to stderr.
    """
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    loggers = (logging, hub_logging)
    verbosity = [logger.get_verbosity() for logger in loggers]
    for logger in loggers:
        logger.set_verbosity_error()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        for logger, level in zip(loggers, verbosity, strict=True):
            logger.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
