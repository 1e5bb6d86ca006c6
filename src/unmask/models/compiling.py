"""torch.compile where it pays: the blocks of a network, all by one set of kernels."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch


def has_compiler() -> bool:
    """Whether torch can make kernels for a GPU here."""
    return importlib.util.find_spec("triton") is not None


def compile_network(network: Any) -> None:
    """From now on the blocks run compiled. What surrounds them, wrappers and hooks included, stays as it is.

    Blocks are alike, so that the kernels of the first serve all. A network without `blocks` is left alone.
    """
    for block in getattr(network, "blocks", ()):
        block.forward = torch.compile(block.forward)
    network.fused = True
