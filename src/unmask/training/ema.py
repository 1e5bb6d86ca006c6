"""The average of the weights that is validated, saved and shipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from unmask.training.distributed import local


class EMA:
    """An exponential moving average of named parameters, `weights`, in float32. With decay 0 it is the parameters.

    Of sharded parameters every process averages its own slices.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = dict(parameters)
        if decay:
            self.weights = {name: live.detach().float().clone() for name, live in parameters.items()}
        self._parameters = list(parameters.values())

    def decay_at(self, n: int) -> float:
        """The decay of the n-th update, n = 1, 2, ...: young averages forget faster."""
        return min(self.decay, (1 + n) / (10 + n))

    @torch.no_grad()
    def update(self, n: int) -> None:
        """Take in the parameters as they are after the n-th optimiser step."""
        if self.decay:
            torch._foreach_lerp_(self._average, self._live, 1.0 - self.decay_at(n))

    @property
    def _live(self) -> list[Tensor]:
        return [local(parameter.detach()) for parameter in self._parameters]

    @property
    def _average(self) -> list[Tensor]:
        return [local(weight) for weight in self.weights.values()]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network computes with the average for a while; its own weights come back bit by bit."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        if not self.decay:
            return
        for live, average in zip(self._live, self._average, strict=True):
            kept = live.clone()
            live.copy_(average)
            average.copy_(kept)
