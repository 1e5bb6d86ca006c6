"""AdamW."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field
from torch import nn
from torch.optim import AdamW as TorchAdamW
from torch.optim import Optimizer

from unmask.registry import Component

Parameters = Mapping[str, nn.Parameter]
Decay = Annotated[float, Field(ge=0, lt=1)]

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


class OptimizerComponent(Component):
    """A member of the axis. The rate needs no scheduler that would have to be saved; `Optimizer`s are torch's."""

    model_config = ConfigDict(allow_inf_nan=False)

    learning_rate: float = Field(default=3e-4, gt=0)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled, on matrices alone: norms and biases, which have one dimension, never shrink."""
    warmup: int = Field(default=2500, ge=0)
    """Steps over which the rate rises linearly."""
    cooldown: float = Field(default=0.0, ge=0, le=1)
    """Share of all steps, at the end, over which the rate falls; 0 keeps it, 1 lets it fall from the warm-up on."""
    cooldown_shape: Literal["linear", "cosine"] = "linear"
    cooldown_to: float = Field(default=0.0, ge=0, le=1)
    """Where it falls to, as a share of the full rate."""
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=True)
    """Largest norm of the gradient of all parameters together."""
    ema: float = Field(default=0.9999, ge=0, lt=1)
    """Decay of the weight average; at step n it is min(ema, (1 + n)/(10 + n)). 0 keeps the weights themselves."""

    @abstractmethod
    def build(self, parameters: Parameters, device: torch.device) -> Optimizer:
        """torch's optimiser of these parameters, by name, which lie on this device."""

    def fitting(self, parameters: Parameters, flattened_by: str | None = None) -> tuple[OptimizerComponent, str | None]:
        """Who optimises these parameters, and a sentence where that is somebody else.

        `flattened_by` names what has rolled all parameters into vectors, if anything has.
        """
        return self, None

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step 0, ..., steps - 1. The last step of the warm-up has the full one."""
        risen = min(1.0, (step + 1) / max(1, self.warmup))
        return self.learning_rate * risen * self._left(step, steps)

    def cooldown_begin(self, steps: int) -> int:
        """The last step with the full rate, after which it falls; `steps` where it does not."""
        return min(steps, max(self.warmup, steps - round(self.cooldown * steps)))

    def _left(self, step: int, steps: int) -> float:
        """The share of the rate that is left: 1 up to the cool-down, `cooldown_to` one step after the last."""
        begin = self.cooldown_begin(steps)
        if step <= begin:
            return 1.0
        gone = (step - begin) / (steps - begin)
        if self.cooldown_shape == "cosine":
            gone = (1 - math.cos(math.pi * gone)) / 2
        return 1.0 + (self.cooldown_to - 1.0) * gone


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def adamw(config: OptimizerComponent, parameters: Parameters, device: torch.device) -> TorchAdamW:
    """torch's AdamW, in one kernel where the device has that. Decay, if any, is for matrices."""
    return TorchAdamW(
        decay_groups(parameters, config.weight_decay),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=device.type in FUSED_DEVICES,
    )


def decay_groups(parameters: Parameters, weight_decay: float) -> list[dict[str, Any]]:
    """All parameters as one group where nothing decays, else the matrices and the others apart."""
    if not weight_decay:
        return [{"params": list(parameters.values()), "weight_decay": 0.0}]
    matrices = [parameter for parameter in parameters.values() if parameter.ndim >= 2]
    others = [parameter for parameter in parameters.values() if parameter.ndim < 2]
    groups = ({"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


class AdamW(OptimizerComponent):
    """AdamW; by default as published: a constant rate after a long warm-up, no decay."""

    name: Literal["adamw"] = "adamw"

    def build(self, parameters: Parameters, device: torch.device) -> Optimizer:
        return adamw(self, parameters, device)
