"""CUDA graphs: work whose tensors stay where they are is recorded once and replayed with a single launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

WARM_UP = 2
"""Calls before the recording, in which kernels are chosen and libraries make their workspaces."""


_alone = Lock()
"""Held while a graph is recorded or memory is pinned: CUDA may give up a recording during which another thread pins."""


def pin(tensor: Tensor) -> Tensor:
    """A copy that a GPU can fetch by itself."""
    with _alone:
        return tensor.pin_memory()


@contextmanager
def uncollected() -> Iterator[None]:
    """Let garbage lie: a graph or a kernel that is finalised would end the recording of another one.

    pytorch/pytorch#161037.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class Recording:
    """`work` as a graph. What it returns lies in the same memory at every call, and must be copied to be kept.

    It is called `warm_up` times before, so that it must do the same whenever its inputs are the same; whoever has
    called it already says 0. Recordings that are never played at once may share memory: `beside` names another one.
    """

    def __init__(self, work: Callable[[], T], warm_up: int = WARM_UP, beside: Recording | None = None) -> None:
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                work()
        current.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        pool = None if beside is None else beside._graph.pool()
        # Other threads, such as those that make the next training batches, may go on meanwhile.
        with _alone, uncollected(), torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
            self._result: Any = work()

    def __call__(self) -> Any:
        self._graph.replay()
        return self._result


def can_record(denoiser: Any) -> bool:
    """Whether a network computes on a GPU, by itself: one sliced over processes fetches its weights as it goes."""
    return all(weight.is_cuda and not hasattr(weight, "device_mesh") for weight in denoiser.parameters())
