"""Several of torch's optimisers under one face, so that one thing is prepared, stepped, saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.optim import Optimizer

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
