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
            directions = [self._direction(parameter, group["momentum"]) for parameter in moving]
            for parameter, update in zip(moving, orthogonal_parts(directions, group["parts"]), strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(_sharded_like(parameter, update), alpha=-group["lr"])

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        """Nesterov's: the gradient, and the average of gradients with this one already in it."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        direction = gradient.lerp(average, momentum)
        return direction.full_tensor() if _is_sharded(direction) else direction  # type: ignore[attr-defined]


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


def _sharded_like(parameter: Any, update: Tensor) -> Tensor:
    """The part of a whole update that this process holds of its parameter."""
    if not _is_sharded(parameter):
        return update
    from torch.distributed.tensor import DTensor, Replicate

    mesh = parameter.device_mesh
    everywhere = DTensor.from_local(update, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=parameter.placements)
