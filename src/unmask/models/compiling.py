"""torch.compile where it pays: the blocks of a network, all by one set of kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
from torch import Tensor

KEPT = 0.8
"""Share of the activations that torch's partitioner would keep by itself that it is allowed to keep."""
MOST_KINDS = 64
"""Kinds of calls (lengths, batches, with pads or without, some rows or all) that get kernels of their own; torch stops
at 8, and what comes after that runs as if nothing were compiled."""


def has_compiler() -> bool:
    """Whether torch can make kernels for a GPU here."""
    return importlib.util.find_spec("triton") is not None


def compile_network(network: Any) -> None:
    """From now on the blocks run compiled. What surrounds them, wrappers and hooks included, stays as it is.

    Blocks are alike, so that the kernels of the first serve all. A network without `blocks` is left alone.
    """
    dynamo_config.recompile_limit = max(dynamo_config.recompile_limit, MOST_KINDS)
    for block in getattr(network, "blocks", ()):
        block.forward = _frugal(torch.compile(block.forward))
    network.fused = True


def _frugal(compiled: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep for the backward pass what matrices and attention have made, and make again what is cheap."""

    @wraps(compiled)
    def run(*args: Any, **kwargs: Any) -> Tensor:
        with functorch_config.patch(activation_memory_budget=KEPT):
            return compiled(*args, **kwargs)

    return run
