"""The exponential moving average of the weights, which is validated and saved as the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unmask.training.distributed import local


class EMA:
    """An exponential moving average (`weights`) of named parameters in float32; with decay 0 the parameters themselves.

    Each process averages its own slices of sharded parameters.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = dict(parameters)
        if decay:
            self.weights = {name: live.detach().float().clone() for name, live in parameters.items()}
        self._parameters = list(parameters.values())

    @torch.no_grad()
    def update(self, n: int) -> None:
        """Average in the parameters after the n-th optimizer step, n = 1, 2, ... The decay is lower at first."""
        if self.decay:
            live, average = self._tensors()
            torch._foreach_lerp_(average, live, 1.0 - min(self.decay, (1 + n) / (10 + n)))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Swap the average into the network for the duration of the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        if not self.decay:
            return
        for live, average in zip(*self._tensors(), strict=True):
            kept = live.clone()
            live.copy_(average)
            average.copy_(kept)

    def _tensors(self) -> tuple[list[Tensor], list[Tensor]]:
        live = [local(parameter.detach()) for parameter in self._parameters]
        return live, [local(weight) for weight in self.weights.values()]
