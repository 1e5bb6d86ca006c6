"""The law, enumerated, of uniform order whose calls draw from a prediction given that the canvas is accepted."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.chains import MASK, L, V
from unmask.laws.tables import Table, every_canvas
from unmask.samplers.base import State

WEIGHTS = V ** torch.arange(L)


def completions(denoiser: Table, z: Tensor, accepted: Tensor) -> Tensor:
    """[V^L] the factorised prediction at canvas z [L], given that it is accepted."""
    p = exact.log_conditionals(denoiser, z[None], 1.0)[0].exp()
    p = torch.where((z == MASK)[:, None], p, torch.nn.functional.one_hot(z, V).double())
    each = torch.stack([p[position, every_canvas(V, L)[:, position]] for position in range(L)]).prod(dim=0) * accepted
    return each / each.sum()


def conditioned_chain(steps: int | None, denoiser: Table, start: Tensor, accepted: Tensor) -> Tensor:
    """[V^L] the law of what uniform order writes when each call draws from `completions` and reveals some of it."""
    law = {tuple(start.tolist()): 1.0}
    for rest in reversed(range(steps or int((start == MASK).sum()))):
        after: dict[tuple[int, ...], float] = {}
        for z, chance in law.items():
            masked = [i for i in range(L) if z[i] == MASK]
            completed = completions(denoiser, torch.tensor(z), accepted)
            for size in range(len(masked) + 1):
                for revealed in itertools.combinations(masked, size):
                    share = reveal_chance(steps, rest, len(masked), size)
                    for x, p in zip(every_canvas(V, L).tolist(), completed.tolist(), strict=True):
                        new = tuple(x[i] if i in revealed else z[i] for i in range(L))
                        if share * p > 0:
                            after[new] = after.get(new, 0.0) + chance * share * p
        law = after
    out = torch.zeros(V**L, dtype=torch.float64)
    for z, chance in law.items():
        out[int((torch.tensor(z) * WEIGHTS).sum())] = chance
    return out


def reveal_chance(steps: int | None, rest: int, masks: int, size: int) -> float:
    """That of one set of `size` among `masks` masks to be revealed by the call before the last `rest`."""
    if steps is None:
        return float(size == 1) / masks
    return (1 / (rest + 1)) ** size * (rest / (rest + 1)) ** (masks - size)


def counts(state: State) -> Tensor:
    return torch.bincount((state.ids * WEIGHTS).sum(dim=1), minlength=V**L)
