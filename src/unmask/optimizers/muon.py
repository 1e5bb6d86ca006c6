"""Muon: orthogonalised momentum for the hidden matrices, AdamW for all other parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.optimizers.base import AdamW, OptimizerComponent, Parameters, build_adamw

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of a x + b x^3 + c x^5. Five iterations map singular values from [0.001, 1] to [0.7, 1.2]."""
ITERATIONS = 5
MIN_NORM = 1e-7
ADAMW_RMS = 0.2
"""About the root mean square of AdamW's updates at rate 1 (arXiv 2502.16982), so that one rate serves both."""
ADAMW_RATE = 0.1
"""The rate of AdamW, as a share of Muon's, when it replaces Muon for the hidden matrices too."""

_HIDDEN = re.compile(r"(^|\.)(blocks|layers?|h)\.\d+\.")
_NOT_HIDDEN = re.compile(r"adaLN_modulation|lora_")
_FUSED_QKV = re.compile(r"(^|\.)attn_qkv\.")


class Muon(OptimizerComponent):
    """Muon for the matrices inside the blocks and AdamW for the rest, with one learning rate.

    The rest are embeddings, the head, the conditioning, norms, biases and LoRA factors.
    """

    name: Literal["muon"] = "muon"
    learning_rate: float = Field(default=0.01, gt=0)
    warmup: int = Field(default=50, ge=0)
    cooldown: float = Field(default=0.5, ge=0, le=1)
    momentum: float = Field(default=0.95, ge=0, lt=1)

    def build(self, parameters: Parameters, device: torch.device) -> Optimizer:
        hidden = {name: parameter for name, parameter in parameters.items() if is_hidden_matrix(name, parameter)}
        rest = {name: parameter for name, parameter in parameters.items() if name not in hidden}
        fused = [parameter for name, parameter in hidden.items() if _FUSED_QKV.search(name)]
        single = [parameter for name, parameter in hidden.items() if not _FUSED_QKV.search(name)]
        groups: list[dict[str, Any]] = [{"params": fused, "parts": 3}, {"params": single, "parts": 1}]
        muon = MuonOptimizer(
            [group for group in groups if group["params"]],
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        return ChainedOptimizer([muon, build_adamw(self, rest, device)])

    def resolve(self, parameters: Parameters, flattened_by: str | None = None) -> tuple[OptimizerComponent, str | None]:
        if flattened_by is not None:
            reason = f"{flattened_by} flattens matrices into vectors"
        elif not any(is_hidden_matrix(name, parameter) for name, parameter in parameters.items()):
            reason = "no matrix inside a block is trained (LoRA factors use AdamW)"
        else:
            return self, None
        shared = {name: getattr(self, name) for name in OptimizerComponent.model_fields}
        other = AdamW(**{**shared, "learning_rate": ADAMW_RATE * self.learning_rate})
        return other, f"Muon cannot be used because {reason}; using AdamW with a rate of {other.learning_rate:g}."


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon optimizes this parameter: a matrix inside a block, except for conditioning and LoRA factors."""
    return parameter.ndim == 2 and bool(_HIDDEN.search(name)) and not _NOT_HIDDEN.search(name)


class ChainedOptimizer(Optimizer):
    """Several optimizers of different parameters as one.

    It owns the parameter groups and the state and shares them with the others, so code that swaps parameters in groups
    or loads a state sees a single optimizer.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        groups = [{**group, "optimizer": number} for number, one in enumerate(optimizers) for group in one.param_groups]
        super().__init__(groups, {})
        self.optimizers = list(optimizers)
        self._share_state()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of each optimizer."""
        self._share_state()
        for one in self.optimizers:
            one.step()

    def _share_state(self) -> None:
        for number, one in enumerate(self.optimizers):
            one.param_groups = [group for group in self.param_groups if group["optimizer"] == number]
            one.state = self.state


class MuonOptimizer(Optimizer):
    """Nesterov momentum with all singular values near 1, scaled to the size of AdamW's updates.

    A group's `parts` is the number of matrices stacked in each of its parameters (3 for query, key and value). A
    sharded parameter keeps its shard of the momentum; every process computes the whole update.
    """

    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            updates = orthogonalise(self._directions(parameters, group["momentum"]), group["parts"])
            local_updates = [
                _shard_like(parameter, update) for parameter, update in zip(parameters, updates, strict=True)
            ]
            local = [_local(parameter) for parameter in parameters]
            if group["weight_decay"]:
                torch._foreach_mul_(local, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(local, local_updates, alpha=-group["lr"])

    def _directions(self, parameters: list[Tensor], momentum: float) -> list[Tensor]:
        """The Nesterov direction of each whole matrix."""
        for parameter in parameters:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        gradients = [_local(parameter.grad) for parameter in parameters]
        averages = [_local(self.state[parameter]["momentum_buffer"]) for parameter in parameters]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        directions = torch._foreach_lerp(gradients, averages, momentum)
        return [_whole(direction, parameter) for direction, parameter in zip(directions, parameters, strict=True)]


def orthogonalise(matrices: Iterable[Tensor], parts: int = 1) -> list[Tensor]:
    """Each matrix [parts * m, n] with every part [m, n] orthogonalised and scaled to a root mean square of `ADAMW_RMS`.

    Matrices of the same shape are batched.
    """
    split = [matrix.unflatten(0, (parts, -1)) for matrix in matrices]
    by_shape = defaultdict(list)
    for index, matrix in enumerate(split):
        by_shape[matrix.shape].append(index)
    for (_, rows, columns), indices in by_shape.items():
        batch = newton_schulz(torch.cat([split[index] for index in indices])) * (ADAMW_RMS * max(rows, columns) ** 0.5)
        for index, matrix in zip(indices, batch.split(parts), strict=True):
            split[index] = matrix
    return [matrix.flatten(0, 1) for matrix in split]


def newton_schulz(matrices: Tensor) -> Tensor:
    """[k, m, n] matrices with the same singular vectors and singular values near 1.

    It computes in float32 on a CPU and in bf16 elsewhere, where that is fast and precise enough.
    """
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(torch.float32 if matrices.device.type == "cpu" else torch.bfloat16)
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(MIN_NORM)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "placements")


def _local(tensor: Any) -> Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if _is_sharded(tensor) else tensor


def _whole(part: Tensor, parameter: Any) -> Tensor:
    """The whole matrix from a part that is sharded like its parameter."""
    if not _is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    ).full_tensor()


def _shard_like(parameter: Any, update: Tensor) -> Tensor:
    """The part of a whole update for the shard of its parameter on this process."""
    if not _is_sharded(parameter):
        return update
    from torch.distributed.tensor import DTensor, Replicate

    mesh = parameter.device_mesh
    replicated = DTensor.from_local(update, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=parameter.placements).to_local()
