"""Momentum made orthogonal before it moves a matrix: the update of Muon (K. Jordan, 2024).

torch has a Muon from version 2.9 on. It computes in bf16 whatever the device, which a CPU without such instructions
does some twenty times slower than float32, and cannot take apart a matrix that is three in one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

QUINTIC = (3.4445, -4.7750, 2.0315)
"""a x + b x^3 + c x^5, five times over, takes singular values from 0.001 to 1 into 0.7 to 1.2."""
ITERATIONS = 5
TINY = 1e-7
ADAMW_RMS = 0.2
"""About the root mean square of AdamW's updates at rate 1 (arXiv 2502.16982), so that one rate serves both."""


class OrthogonalMomentum(Optimizer):
    """Matrices follow their Nesterov momentum with all its singular values near 1, scaled to AdamW's size.

    A group's `parts` says of how many matrices, one above the other, each of its parameters is made (3 for query, key
    and value in one). A sharded parameter keeps its shard of the momentum; its update is computed whole by everyone.
    """

    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            updates = orthogonal_parts(self._directions(moving, group["momentum"]), group["parts"])
            own = [_local(_sharded_like(parameter, update)) for parameter, update in zip(moving, updates, strict=True)]
            here = [_local(parameter) for parameter in moving]
            if group["weight_decay"]:
                torch._foreach_mul_(here, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(here, own, alpha=-group["lr"])

    def _directions(self, moving: list[Tensor], momentum: float) -> list[Tensor]:
        """Nesterov's, each whole: the gradient, and the average of gradients with this one already in it."""
        for parameter in moving:
            if "momentum_buffer" not in self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        gradients = [_local(parameter.grad) for parameter in moving]
        averages = [_local(self.state[parameter]["momentum_buffer"]) for parameter in moving]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        directions = torch._foreach_lerp(gradients, averages, momentum)
        return [_whole(direction, parameter) for direction, parameter in zip(directions, moving, strict=True)]


def orthogonal_parts(matrices: Iterable[Tensor], parts: int = 1) -> list[Tensor]:
    """Each matrix [parts * m, n] with every part [m, n] made orthogonal, its entries of root mean square `ADAMW_RMS`.

    Those of one shape go through the iteration together.
    """
    cut = [matrix.unflatten(0, (parts, -1)) for matrix in matrices]
    places = defaultdict(list)
    for place, matrix in enumerate(cut):
        places[matrix.shape].append(place)
    for (_, rows, columns), alike in places.items():
        together = orthogonal(torch.cat([cut[place] for place in alike])) * (ADAMW_RMS * max(rows, columns) ** 0.5)
        for place, matrix in zip(alike, together.split(parts), strict=True):
            cut[place] = matrix
    return [matrix.flatten(0, 1) for matrix in cut]


def orthogonal(matrices: Tensor) -> Tensor:
    """[k, m, n] matrices with their singular vectors kept and their singular values near 1, by Newton-Schulz.

    In float32 on a CPU and in bf16 elsewhere, where that is fast and precise enough.
    """
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(torch.float32 if matrices.device.type == "cpu" else torch.bfloat16)
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp_min(TINY)
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
    """A matrix of which this process holds a part, as it does of its parameter."""
    if not _is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor

    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        part, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    ).full_tensor()


def _sharded_like(parameter: Any, update: Tensor) -> Tensor:
    """The part of a whole update that this process holds of its parameter."""
    if not _is_sharded(parameter):
        return update
    from torch.distributed.tensor import DTensor, Replicate

    mesh = parameter.device_mesh
    everywhere = DTensor.from_local(update, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=parameter.placements)
