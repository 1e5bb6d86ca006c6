"""The planner head: which masked positions a frozen network would get right, from what it makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from unmask.errors import UnmaskError
from unmask.models.dropout import Dropout
from unmask.models.layers import Gelu, LayerNorm, ZeroLinear

LEAST_DOUBT = 1e-6
"""The smallest 1 - p that float32 logits tell apart from none."""


class PlannerConfig(BaseModel):
    """What a recipe says about a planner: `width` is that of its hidden layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(default=128, ge=1)


class PlannerHead(nn.Module):
    """The log-odds that the most likely token is the right one: the network's own, and what is learnt to be added.

    What is added is made of a hidden row and of those log-odds. It starts at zero: a fresh planner plans by confidence.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(hidden_size, bias=True)
        self.inner = nn.Linear(hidden_size, width)
        self.gelu = Gelu()
        self.outer = ZeroLinear(width + 1, 1)

    def forward(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """Hidden rows [..., D] and the log-probability [...] of their most likely tokens to log-odds [...]."""
        own = log_odds(log_top.float())
        told = torch.cat([self.gelu(self.inner(self.norm(rows))).float(), own[..., None]], dim=-1)
        return own + self.outer(told)[..., 0].float()


def no_planner(checkpoint: Path | str | None = None) -> UnmaskError:
    """What to say where a planner is asked for and there is none, in a checkpoint if it is known which."""
    network = "This network" if checkpoint is None else f"'{checkpoint}'"
    return UnmaskError(
        f"{network} has no planner to order positions by; train one with "
        f"'unmask train planner --from {checkpoint or 'CKPT'}'."
    )


def log_odds(log_p: Tensor) -> Tensor:
    """log p - log(1 - p) of log p; finite."""
    return log_p - torch.log((-torch.expm1(log_p)).clamp_min(LEAST_DOUBT))


def attach(network: Any, planner: PlannerConfig) -> Any:
    """Put a fresh planner beside a network. It alone learns from now on, and the network drops nothing out."""
    network.requires_grad_(False)
    for module in network.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    network.planner = PlannerHead(network.config.hidden_size, planner.width)
    network.config.planner_width = planner.width
    return network
