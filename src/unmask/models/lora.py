"""LoRA: a network whose matrices stay as they are, and thin factors beside them that learn (arXiv 2106.09685)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from unmask.errors import UnmaskError, did_you_mean

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


def inject(network: nn.Module, lora: LoraConfig) -> nn.Module:
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
