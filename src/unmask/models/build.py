"""Networks by size: what a recipe says about its model, and the model made from it."""

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
from unmask.models.dit import DiT, PlannerConfig, attach_planner
from unmask.registry import Component


def read_config(path: Path) -> Any:
    """The network's configuration in a checkpoint folder."""
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


def load_network(path: Path, causal: bool, **options: Any) -> Any:
    """The network in a folder; `options` go to `from_pretrained`. Keys and shapes must be those of its config."""
    opener: Any = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    try:
        with silence_transformers():
            model, report = opener.from_pretrained(path, output_loading_info=True, local_files_only=True, **options)
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


def is_causal_config(config: Any) -> bool:
    """Whether networks of this configuration see only what stands before."""
    return isinstance(config, CausalConfig)


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Keep transformers from drawing bars over ours, and what it imports (DeepSpeed) from printing among our output."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """What an error of a library says first, short enough for a sentence of ours."""
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


_IN_A_LAYER = re.compile(r"(?:^|\.)(?:blocks|layers?|h)\.\d+\.(.+)")
_CONDITIONING = "adaLN_modulation"
_ADAPTER = "default"


class LoraConfig(BaseModel):
    """W + (alpha / rank) B A, with A of `rank` rows; `dropout` before A; `targets` None is all but the conditioning."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int = Field(default=8, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: list[str] | None = Field(default=None, min_length=1)
    """Which matrices of every block get factors, by their names in it, such as attn_qkv or mlp.0."""


def add_lora(network: nn.Module, lora: LoraConfig) -> nn.Module:
    """Put factors beside the matrices; they alone learn from now on, and at first they change nothing."""
    try:
        import peft
    except ImportError as error:
        raise UnmaskError("model.lora needs the package peft; install it with pip install 'unmask[lora]'.") from error

    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        target_modules=_chosen(network, lora.targets),
    )
    return peft.inject_adapter_in_model(settings, network, adapter_name=_ADAPTER)


def merged_state_dict(network: nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The weights under their plain names, the factors multiplied out and added; `state` in the place of its own.

    A network without factors gives its weights as they are.
    """
    merged = dict(network.state_dict() if state is None else state)
    for name, layer in network.named_modules():
        if not hasattr(layer, "lora_A"):
            continue
        down, up = (merged.pop(f"{name}.{factor}.{_ADAPTER}.weight") for factor in ("lora_A", "lora_B"))
        merged[f"{name}.weight"] = merged.pop(f"{name}.base_layer.weight") + layer.scaling[_ADAPTER] * (up @ down)
        if f"{name}.base_layer.bias" in merged:
            merged[f"{name}.bias"] = merged.pop(f"{name}.base_layer.bias")
    return merged


def _chosen(network: nn.Module, targets: list[str] | None) -> list[str]:
    """Full names of the linear maps inside the blocks whose names there are asked for."""
    found = [
        (name, match[1])
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and (match := _IN_A_LAYER.search(name))
    ]
    known = {inner for _, inner in found}
    wanted = {inner for inner in known if _CONDITIONING not in inner} if targets is None else set(targets)
    for target in sorted(wanted - known):
        raise UnmaskError(f"The network has no matrix '{target}' for model.lora.targets.{did_you_mean(target, known)}")
    return [name for name, inner in found if inner in wanted]


Size = Literal["nano", "tiny", "small", "medium"]

SIZES: dict[Size, dict[str, int]] = {
    "nano": {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4},
    "tiny": {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8},
    "small": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12},
    "medium": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16},
}


class _TransformerSpec(Component):
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


class DiTSpec(_TransformerSpec):
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


class CausalSpec(_TransformerSpec):
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
        return is_causal_config(read_config(Path(self.path)))

    def build(self, vocab_size: int, mask_token_id: int, length: int, **options: Any) -> Any:
        """The network in float32; `vocab_size` and `mask_token_id` must be its own, `length` may be longer."""
        config = read_config(Path(self.path))
        self._check_vocabulary(config, vocab_size, mask_token_id)
        config.max_length = max(config.max_length, length)
        config.dropout = config.dropout if self.dropout is None else self.dropout
        if not is_causal_config(config):
            config.mask_logit = options.get("mask_logit", False)
            config.planner_width = None
        network = load_network(Path(self.path), self.causal, config=config, dtype=torch.float32)
        if self.absolute_positions and not self.causal:
            network.add_absolute_positions()
        if self.planner is not None:
            return attach_planner(network, self.planner)
        return network if self.lora is None else add_lora(network, self.lora)

    def _check_vocabulary(self, config: Any, vocab_size: int, mask_token_id: int) -> None:
        if (vocab_size, mask_token_id) != (config.vocab_size, config.mask_token_id):
            raise UnmaskError(
                f"The tokenizer has {vocab_size} tokens with the mask at {mask_token_id}, and the network in "
                f"'{self.path}' has {config.vocab_size} with the mask at {config.mask_token_id}; "
                "train it with the tokenizer it was trained with."
            )
