"""The laws on another device. They are written without one; here they are carried to a GPU as they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only


@contextmanager
def on(device: torch.device | str) -> Iterator[None]:
    """What is computed in this block is computed on a device: new tensors are made there, those of the CPU follow."""
    device = torch.device(device)
    if device.type == "cpu":
        yield
        return
    with device, _Gathering(device):
        yield


class _Gathering(TorchFunctionMode):
    """Every operation finds its tensors on one device. Only random numbers stay where their generator lives."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("generator") is not None:
            return function(*args, **{"device": kwargs["generator"].device, **kwargs})
        args, kwargs = tree_map_only(Tensor, self._here, (args, kwargs))
        return function(*args, **kwargs)

    def _here(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device) if tensor.device.type == "cpu" else tensor
