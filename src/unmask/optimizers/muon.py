"""Muon: the hidden matrices move orthogonally, AdamW moves the rest."""

from __future__ import annotations

import re
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from unmask.optimizers.adamw import AdamW
from unmask.optimizers.base import OptimizerComponent, Parameters, adamw
from unmask.optimizers.chained import Chained
from unmask.optimizers.orthogonal import OrthogonalMomentum

ADAMW_SHARE = 0.1
"""What AdamW bears of a rate that suits Muon, where it has to move the hidden matrices too."""

_HIDDEN = re.compile(r"(^|\.)(blocks|layers?|h)\.\d+\.")
_NOT_HIDDEN = re.compile(r"adaLN_modulation|lora_")
_THREE_IN_ONE = re.compile(r"(^|\.)attn_qkv\.")


class Muon(OptimizerComponent):
    """Orthogonal momentum for the matrices inside the blocks, AdamW for the rest, at one rate.

    The rest: embeddings, the head, the conditioning, norms and biases, and the thin factors of a LoRA.
    """

    name: Literal["muon"] = "muon"
    learning_rate: float = Field(default=0.01, gt=0)
    warmup: int = Field(default=50, ge=0)
    cooldown: float = Field(default=0.5, ge=0, le=1)
    momentum: float = Field(default=0.95, ge=0, lt=1)

    def build(self, parameters: Parameters, device: torch.device) -> Optimizer:
        hidden = {name: parameter for name, parameter in parameters.items() if is_hidden_matrix(name, parameter)}
        rest = {name: parameter for name, parameter in parameters.items() if name not in hidden}
        options = {"lr": self.learning_rate, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return Chained([OrthogonalMomentum(_groups(hidden), **options), adamw(self, rest, device)])

    def fitting(self, parameters: Parameters, flattened_by: str | None = None) -> tuple[OptimizerComponent, str | None]:
        reason = can_take_muon(parameters, flattened_by)
        if reason is None:
            return self, None
        shared = {name: getattr(self, name) for name in OptimizerComponent.model_fields}
        other = AdamW(**{**shared, "learning_rate": ADAMW_SHARE * self.learning_rate})
        return other, (
            f"Muon cannot be used here, since {reason}; AdamW takes its place, at a rate of {other.learning_rate:g}."
        )


def can_take_muon(parameters: Parameters, flattened_by: str | None = None) -> str | None:
    """None where Muon has something to do, else the reason why not, as it follows a 'since'."""
    if flattened_by is not None:
        return f"{flattened_by} rolls matrices into vectors"
    if not any(is_hidden_matrix(name, parameter) for name, parameter in parameters.items()):
        return "no matrix inside a block learns (the factors of a LoRA are left to AdamW)"
    return None


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon moves this parameter: a matrix inside a block that is neither conditioning nor a LoRA's factor."""
    return parameter.ndim == 2 and bool(_HIDDEN.search(name)) and not _NOT_HIDDEN.search(name)


def _groups(hidden: Parameters) -> list[dict[str, Any]]:
    """The matrices that are query, key and value in one, and the others."""
    fused = [parameter for name, parameter in hidden.items() if _THREE_IN_ONE.search(name)]
    single = [parameter for name, parameter in hidden.items() if not _THREE_IN_ONE.search(name)]
    groups: list[dict[str, Any]] = [{"params": fused, "parts": 3}, {"params": single, "parts": 1}]
    return [group for group in groups if group["params"]]
