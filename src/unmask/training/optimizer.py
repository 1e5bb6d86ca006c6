"""AdamW and its learning rate. The rate is a function of the step alone, so there is no scheduler to save."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from unmask.config import OptimizerConfig

FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def adamw(parameters: Iterable[nn.Parameter], config: OptimizerConfig, device: torch.device) -> AdamW:
    """AdamW as the recipe asks for it, in one kernel where the device has that."""
    return AdamW(
        parameters,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=device.type in FUSED_DEVICES,
    )


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """The rate of step 0, 1, ...: it rises linearly over `warmup` steps, the last of which has the full rate."""
    return config.learning_rate * min(1.0, (step + 1) / max(1, config.warmup))


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Use this rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
