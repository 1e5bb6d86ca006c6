"""AdamW."""

from __future__ import annotations

from typing import Literal

import torch
from torch.optim import Optimizer

from unmask.optimizers.base import OptimizerComponent, Parameters, adamw


class AdamW(OptimizerComponent):
    """AdamW; by default as published: a constant rate after a long warm-up, no decay."""

    name: Literal["adamw"] = "adamw"

    def build(self, parameters: Parameters, device: torch.device) -> Optimizer:
        return adamw(self, parameters, device)
