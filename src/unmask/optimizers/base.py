"""The base class of optimizers, with the learning-rate schedule, and AdamW."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal

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
    """The options of an optimizer. The learning rate is a function of the step, so there is no scheduler state."""

    model_config = ConfigDict(allow_inf_nan=False)

    learning_rate: float = Field(default=3e-4, gt=0)
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of matrices; norms and biases, which have one dimension, do not decay."""
    warmup: int = Field(default=2500, ge=0)
    """Steps over which the learning rate rises linearly."""
    cooldown: float = Field(default=0.0, ge=0, le=1)
    """Share of all steps, at the end, over which the rate falls; 0 keeps it constant, 1 starts after the warm-up."""
    cooldown_shape: Literal["linear", "cosine"] = "linear"
    cooldown_to: float = Field(default=0.0, ge=0, le=1)
    """The end of the cool-down as a share of the full rate."""
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=True)
    """Maximum norm of the gradient of all parameters together."""
    ema: float = Field(default=0.9999, ge=0, lt=1)
    """Decay of the weight average, min(ema, (1 + n)/(10 + n)) at step n; 0 keeps the weights themselves."""

    @abstractmethod
    def build(self, parameters: Parameters, device: torch.device) -> Optimizer:
        """A torch optimizer of these named parameters on this device."""

    def resolve(self, parameters: Parameters, flattened_by: str | None = None) -> tuple[OptimizerComponent, str | None]:
        """The optimizer to use for these parameters, and a notice if it is a different one.

        `flattened_by` names the framework that has flattened all parameters into vectors, if any.
        """
        return self, None

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step 0, ..., steps - 1. The last step of the warm-up has the full rate."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup))
        begin = max(self.warmup, steps - round(self.cooldown * steps))
        if step <= begin:
            return rate
        progress = (step - begin) / (steps - begin)
        if self.cooldown_shape == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return rate * (1.0 + (self.cooldown_to - 1.0) * progress)


class AdamW(OptimizerComponent):
    """AdamW; the defaults are the published ones: a constant rate after a long warm-up, no weight decay."""

    name: Literal["adamw"] = "adamw"

    def build(self, parameters: Parameters, device: torch.device) -> Optimizer:
        return build_adamw(self, parameters, device)


def build_adamw(config: OptimizerComponent, parameters: Parameters, device: torch.device) -> TorchAdamW:
    """torch's AdamW, fused where the device supports it. Only matrices decay."""
    if config.weight_decay:
        matrices = [parameter for parameter in parameters.values() if parameter.ndim >= 2]
        others = [parameter for parameter in parameters.values() if parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    else:
        groups = [{"params": list(parameters.values()), "weight_decay": 0.0}]
    return TorchAdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=device.type in FUSED_DEVICES,
    )
