"""How the numbers of a run lie in its processes, and how to have them whole: on every process, in slices, or flattened.

A checkpoint holds whole tensors under the network's own names, so that any number of processes can go on from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor, nn

Named = Mapping[str, nn.Parameter]
Whole = Iterator[tuple[str, Tensor]]


class Layout:
    """Every process holds all weights (alone, or data parallel), or its slices of them (FSDP2)."""

    flattened_by: ClassVar[str | None] = None
    """Who rolls matrices into vectors before an optimiser sees them."""

    def weights(self, parameters: Named) -> Whole:
        """The weights themselves, whole, one after the other."""
        return ((name, whole(parameter.detach())) for name, parameter in parameters.items())

    def load_weights(self, parameters: Named, saved: Mapping[str, Tensor]) -> None:
        """Put whole weights back."""
        for name, parameter in parameters.items():
            fill(parameter.detach(), saved[name])

    def moments(self, optimizer: Any, parameters: Named) -> Whole:
        """What the optimiser keeps for each weight, whole, as ``weight.key``."""
        return (
            (f"{name}.{key}", whole(value))
            for name, parameter in parameters.items()
            for key, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        )

    def load_moments(self, optimizer: Any, parameters: Named, saved: Mapping[str, Tensor]) -> None:
        """Put them back: those shaped as their weight are laid out as it is."""
        names = {id(parameter): name for name, parameter in parameters.items()}
        order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state = {number: _kept(names[id(parameter)], parameter, saved) for number, parameter in enumerate(order)}
        known = {number: kept for number, kept in state.items() if kept}
        optimizer.load_state_dict({"state": known, "param_groups": optimizer.state_dict()["param_groups"]})


class DeepSpeedLayout(Layout):
    """ZeRO 1 and 2: float32 weights and moments lie flattened over the processes; DeepSpeed puts them together."""

    flattened_by = "DeepSpeed"

    def weights(self, parameters: Named) -> Whole:
        from deepspeed.utils import safe_get_full_fp32_param

        return ((name, safe_get_full_fp32_param(parameter)) for name, parameter in parameters.items())

    def load_weights(self, parameters: Named, saved: Mapping[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        for name, parameter in parameters.items():
            parameter.detach().copy_(saved[name])
            safe_set_full_fp32_param(parameter, saved[name].to(parameter.device))

    def moments(self, optimizer: Any, parameters: Named) -> Whole:
        from deepspeed.utils import safe_get_full_optimizer_state

        flat: dict[str, Any] = next(iter(_inner_pair(optimizer)[1].state.values()), {})
        for name, parameter in parameters.items():
            for key in flat:
                counter = key == "step"
                value = flat[key] if counter else safe_get_full_optimizer_state(parameter, key)
                yield f"{name}.{key}", torch.as_tensor(value)

    def load_moments(self, optimizer: Any, parameters: Named, saved: Mapping[str, Tensor]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        kept = {name: _kept(name, parameter, saved) for name, parameter in parameters.items()}
        pattern = next(iter(kept.values()))
        if not pattern:
            return
        _make_room(optimizer, pattern)
        for name, parameter in parameters.items():
            for key, value in kept[name].items():
                if value.dim():
                    safe_set_full_optimizer_state(parameter, value, key)


def _make_room(optimizer: Any, pattern: Mapping[str, Tensor]) -> None:
    """Give a DeepSpeed optimiser that has not stepped yet its counters and empty moments, as its first step would."""
    zero, inner = _inner_pair(optimizer)
    for group in inner.param_groups:
        for flat in group["params"]:
            inner.state[flat] = {
                key: torch.zeros_like(flat) if value.dim() else value.to(flat.device if group.get("fused") else "cpu")
                for key, value in pattern.items()
            }
    zero._lazy_init_hp_params_optimizer_state()


def layout_of(accelerator: Accelerator) -> Layout:
    """The layout that a launch asked for."""
    return DeepSpeedLayout() if accelerator.distributed_type == DistributedType.DEEPSPEED else Layout()


@contextmanager
def opened(module: Any) -> Iterator[None]:
    """A sharded module has its own weights whole for a while (its blocks see to theirs); others always have."""
    if not hasattr(module, "unshard"):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies in this process, sharing its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; every process must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[operator]


@torch.no_grad()
def fill(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole value into a tensor, of which this process may hold a slice."""
    local(tensor).copy_(local(_like(tensor, value)))


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    """A whole value laid out as a tensor is; one of another shape (a counter) stays as it is."""
    if value.shape != tensor.shape:
        return value
    value = value.to(tensor.device)
    if not hasattr(tensor, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]


def _kept(name: str, parameter: nn.Parameter, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    keys = [key for key in saved if key.rpartition(".")[0] == name]
    return {key.rpartition(".")[2]: _like(parameter, saved[key]) for key in keys}


def _inner_pair(optimizer: Any) -> tuple[Any, Any]:
    """DeepSpeed's optimiser inside Accelerate's, and torch's inside that."""
    outer = optimizer
    while hasattr(optimizer.optimizer, "optimizer"):
        outer = optimizer = optimizer.optimizer
    return outer, outer.optimizer
