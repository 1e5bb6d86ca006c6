"""Networks from recipes: sizes, fresh networks, checkpoints, LoRA adapters and planners."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.utils import logging

from unmask.errors import UnmaskError, did_you_mean
from unmask.models.causal import CausalLM
from unmask.models.config import CausalConfig, DiTConfig
from unmask.models.dit import DiT
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
    """W + (alpha / rank) B A with A of `rank` rows, and `dropout` before A."""

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


class _TransformerSpec(Component):
    """A size and overrides of its fields."""

    causal: ClassVar[bool] = False
    """Whether the network is autoregressive."""

    size: Size = "small"
    hidden_size: int | None = Field(default=None, ge=1)
    layers: int | None = Field(default=None, ge=1)
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


class DiTSpec(_TransformerSpec):
    """A fresh bidirectional denoiser, unconditioned by default."""

    name: Literal["dit"] = "dit"
    conditioned: bool = False
    modulated: bool = False
    """Whether an unconditioned network is modulated (adaLN-zero) at a constant sigma = 0, as in the published runs."""
    cond_dim: int = Field(default=128, ge=1)
    absolute_positions: bool = False
    """Whether to add absolute positions, for rows that each hold one text; not in published weights."""

    def build(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool = False) -> DiT:
        """A network for a vocabulary of vocab_size tokens (including the mask) and sequences of up to length tokens."""
        config = DiTConfig(
            conditioned=self.conditioned,
            modulated=self.modulated,
            cond_dim=self.cond_dim,
            mask_logit=mask_logit,
            absolute_positions=self.absolute_positions,
            **self._config_fields(vocab_size, mask_token_id, length),
        )
        return DiT(config)


class CausalSpec(_TransformerSpec):
    """A fresh autoregressive model, whose sequences begin with the mask token."""

    name: Literal["causal"] = "causal"
    causal: ClassVar[bool] = True

    def build(self, vocab_size: int, mask_token_id: int, length: int) -> CausalLM:
        """A network for a vocabulary of vocab_size tokens (including the mask) and sequences of up to length tokens."""
        return CausalLM(CausalConfig(**self._config_fields(vocab_size, mask_token_id, length)))


class CheckpointSpec(Component):
    """A trained network from its folder, to train all of it further, or a LoRA adapter, or a planner head."""

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
        return is_causal_config(read_config(Path(self.path)))

    def build(self, vocab_size: int, mask_token_id: int, length: int, **options: Any) -> Any:
        """The network in float32. The vocabulary must be that of the checkpoint; `length` may be longer."""
        config = read_config(Path(self.path))
        if (vocab_size, mask_token_id) != (config.vocab_size, config.mask_token_id):
            raise UnmaskError(
                f"The tokenizer has {vocab_size} tokens with the mask at {mask_token_id}, but the network in "
                f"'{self.path}' has {config.vocab_size} with the mask at {config.mask_token_id}; "
                "use the tokenizer of the checkpoint."
            )
        causal = is_causal_config(config)
        config.max_length = max(config.max_length, length)
        config.dropout = config.dropout if self.dropout is None else self.dropout
        if not causal:
            config.mask_logit = options.get("mask_logit", False)
            config.planner_width = None
        network = load_network(Path(self.path), causal, config=config, dtype=torch.float32)
        if self.absolute_positions and not causal:
            network.add_absolute_positions()
        if self.planner is not None:
            return attach_planner(network, self.planner)
        return network if self.lora is None else add_lora(network, self.lora)


# ---- planners and adapters ------------------------------------------------------------------------------------------


def attach_planner(network: Any, planner: PlannerConfig) -> Any:
    """Add a fresh planner to a network, freeze everything else and turn its dropout off."""
    network.requires_grad_(False)
    for module in network.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    network.planner = PlannerHead(network.config.hidden_size, planner.width)
    network.config.planner_width = planner.width
    return network


_BLOCK_LAYER = re.compile(r"(?:^|\.)(?:blocks|layers?|h)\.\d+\.(.+)")
_ADAPTER = "default"


def add_lora(network: nn.Module, lora: LoraConfig) -> nn.Module:
    """Add LoRA adapters, which have no effect before training, and freeze everything else."""
    try:
        import peft
    except ImportError as error:
        raise UnmaskError("model.lora needs the package peft; install it with pip install 'unmask[lora]'.") from error

    # full name of every linear layer in a block, and its name within the block
    layers = {
        name: match[1]
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and (match := _BLOCK_LAYER.search(name))
    }
    known = set(layers.values())
    targets = {name for name in known if "adaLN_modulation" not in name} if lora.targets is None else set(lora.targets)
    for target in sorted(targets - known):
        raise UnmaskError(f"The network has no matrix '{target}' for model.lora.targets.{did_you_mean(target, known)}")
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


def read_config(path: Path) -> Any:
    """The network configuration in a checkpoint folder."""
    if not (path / "config.json").is_file():
        raise UnmaskError(
            f"There is no checkpoint at '{path}'; give the folder that 'unmask train' or 'convert' wrote."
        )
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True)
    except UnmaskError:
        raise
    except Exception as error:
        raise UnmaskError(f"'{path / 'config.json'}' cannot be read ({first_line(error)}); restore it.") from error


def is_causal_config(config: Any) -> bool:
    """Whether networks of this configuration are autoregressive."""
    return isinstance(config, CausalConfig)


def load_network(path: Path, causal: bool, **options: Any) -> Any:
    """The network in a folder, whose weights must fit its config; `options` go to `from_pretrained`."""
    auto_class: Any = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    try:
        with silence_transformers():
            model, report = auto_class.from_pretrained(path, output_loading_info=True, local_files_only=True, **options)
    except UnmaskError:
        raise
    except Exception as error:
        raise UnmaskError(
            f"The weights in '{path}' cannot be opened ({first_line(error)}); the file may be damaged."
        ) from error
    wrong = [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]
    if wrong:
        raise UnmaskError(
            f"The weights in '{path}' do not fit its config.json: {wrong[0]} and {len(wrong) - 1} more keys."
        )
    return model


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Hide the progress bars of transformers, and send what its imports (DeepSpeed) print to stderr."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The first line of an error message, at most 200 characters."""
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
