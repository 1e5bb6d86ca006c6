"""The laws on another device. They are written without one; here they are carried to a GPU as they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


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
    """Every operation finds its tensors on one device. Only random numbers are made where their generator lives."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = {name: self._here(value) for name, value in (kwargs or {}).items()}
        if options.get("generator") is not None:
            options.setdefault("device", options["generator"].device)
        return function(*map(self._here, args), **options)

    def _here(self, argument: Any) -> Any:
        # by hand, since pytree takes longer than the operations of the laws themselves
        if isinstance(argument, Tensor):
            return argument.to(self.device) if argument.device.type != self.device.type else argument
        if type(argument) in (list, tuple):
            return type(argument)(map(self._here, argument))
        return argument
