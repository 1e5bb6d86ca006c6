"""What a recipe makes: rows of tokens, a tokenizer, a network that fits the objective, and the checkpoint's card."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from unmask.checkpoint import Card
from unmask.config import DataConfig, Recipe
from unmask.data.policies import Rows
from unmask.errors import UnmaskError


@dataclass(frozen=True)
class Parts:
    """The material of a run. `denoiser` is fresh, made from the training seed."""

    denoiser: Any
    tokenizer: Any
    train: Rows
    validation: Rows
    card: Card
