"""Muon: the hidden matrices move orthogonally, AdamW moves the rest."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.optimizers.base import AdamW, OptimizerComponent, Parameters, adamw

OWNER = "optimizer"
"""The key by which a group says which of the optimisers it belongs to."""


class Chained(Optimizer):
    """Optimisers of different parameters. Groups and state are this one's and are lent to them.

    So whoever swaps parameters inside the groups, or loads a state, need not know that there are several.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        groups = [{**group, OWNER: owner} for owner, one in enumerate(optimizers) for group in one.param_groups]
        super().__init__(groups, {})
        self.optimizers = list(optimizers)
        self._lend()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of each."""
        self._lend()
        for one in self.optimizers:
            one.step()

    def _lend(self) -> None:
        for owner, one in enumerate(self.optimizers):
            one.param_groups = [group for group in self.param_groups if group[OWNER] == owner]
            one.state = self.state


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


ADAMW_SHARE = 0.1
"""What AdamW bears of a rate that suits Muon, where it has to move the hidden matrices too."""

_HIDDEN = re.compile(r"(^|\.)(blocks|layers?|h)\.\d+\.")
_NOT_HIDDEN = re.compile(r"adaLN_modulation|lora_")
_THREE_IN_ONE = re.compile(r"(^|\.)attn_qkv\.")


class Muon(OptimizerComponent):
    """Orthogonal momentum for the matrices inside the blocks, AdamW for the rest, at one rate.

    The rest: embeddings, the head, the conditioning, norms and biases, and the thin factors of a LoRA.
    """

    name: Literal["muon"] = "muon"
    learning_rate: float = Field(default=0.01, gt=0)
    warmup: int = Field(default=50, ge=0)
    cooldown: float = Field(default=0.5, ge=0, le=1)
    momentum: float = Field(default=0.95, ge=0, lt=1)

    def build(self, parameters: Parameters, device: torch.device) -> Optimizer:
        hidden = {name: parameter for name, parameter in parameters.items() if is_hidden_matrix(name, parameter)}
        rest = {name: parameter for name, parameter in parameters.items() if name not in hidden}
        options = {"lr": self.learning_rate, "momentum": self.momentum, "weight_decay": self.weight_decay}
        return Chained([OrthogonalMomentum(_groups(hidden), **options), adamw(self, rest, device)])

    def fitting(self, parameters: Parameters, flattened_by: str | None = None) -> tuple[OptimizerComponent, str | None]:
        reason = can_take_muon(parameters, flattened_by)
        if reason is None:
            return self, None
        shared = {name: getattr(self, name) for name in OptimizerComponent.model_fields}
        other = AdamW(**{**shared, "learning_rate": ADAMW_SHARE * self.learning_rate})
        return other, (
            f"Muon cannot be used here, since {reason}; AdamW takes its place, at a rate of {other.learning_rate:g}."
        )


def can_take_muon(parameters: Parameters, flattened_by: str | None = None) -> str | None:
    """None where Muon has something to do, else the reason why not, as it follows a 'since'."""
    if flattened_by is not None:
        return f"{flattened_by} rolls matrices into vectors"
    if not any(is_hidden_matrix(name, parameter) for name, parameter in parameters.items()):
        return "no matrix inside a block learns (the factors of a LoRA are left to AdamW)"
    return None


def is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether Muon moves this parameter: a matrix inside a block that is neither conditioning nor a LoRA's factor."""
    return parameter.ndim == 2 and bool(_HIDDEN.search(name)) and not _NOT_HIDDEN.search(name)


def _groups(hidden: Parameters) -> list[dict[str, Any]]:
    """The matrices that are query, key and value in one, and the others."""
    fused = [parameter for name, parameter in hidden.items() if _THREE_IN_ONE.search(name)]
    single = [parameter for name, parameter in hidden.items() if not _THREE_IN_ONE.search(name)]
    groups: list[dict[str, Any]] = [{"params": fused, "parts": 3}, {"params": single, "parts": 1}]
    return [group for group in groups if group["params"]]
