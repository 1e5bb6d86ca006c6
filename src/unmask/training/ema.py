"""The average of the weights that is validated, saved and shipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EMA:
    """An exponential moving average of named parameters, in float32. With decay 0 it is the parameters themselves."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self._live = [parameter.detach() for parameter in parameters.values()]
        averaged = [live.clone().float() for live in self._live] if decay else self._live
        self.weights: dict[str, Tensor] = dict(zip(parameters, averaged, strict=True))
        """The average, by the name of the parameter."""

    def decay_at(self, n: int) -> float:
        """The decay of the n-th update, n = 1, 2, ...: young averages forget faster."""
        return min(self.decay, (1 + n) / (10 + n))

    @torch.no_grad()
    def update(self, n: int) -> None:
        """Take in the parameters as they are after the n-th optimiser step."""
        if self.decay:
            torch._foreach_lerp_(list(self.weights.values()), self._live, 1.0 - self.decay_at(n))

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
        for live, average in zip(self._live, self.weights.values(), strict=True):
            kept = live.clone()
            live.copy_(average)
            average.copy_(kept)
