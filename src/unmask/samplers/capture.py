"""CUDA graphs: a step whose tensors stay where they are is recorded once and replayed with a single launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")

WARM_UP = 2
"""Calls before the recording, in which kernels are chosen and libraries make their workspaces."""


def can_capture(denoiser: Any) -> bool:
    """Whether a network computes on a GPU, by itself: one sliced over processes fetches its weights as it goes."""
    return all(weight.is_cuda and not hasattr(weight, "device_mesh") for weight in denoiser.parameters())


def capture(step: Callable[[], T]) -> Callable[[], T]:
    """`step` as a graph. What it returns lies in the same memory at every call, and must be copied to be kept.

    It is called a few times here, so that it must do the same whenever its inputs are the same.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as those that pin the next training batches, may go on meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = step()

    def replay() -> T:
        graph.replay()
        return result

    return replay
