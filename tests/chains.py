"""The law, enumerated, of uniform order whose calls draw the tokens they reveal together."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.chains import MASK, L, V
from unmask.laws.tables import TableDenoiser, all_canvases
from unmask.samplers.base import State

Written = tuple[int, ...]
Places = tuple[int, ...]
Kernel = Callable[[Written, Places], Iterator[tuple[Written, float]]]
"""(a canvas, the positions to be revealed): every next canvas and its chance."""

WEIGHTS = V ** torch.arange(L)


def completions(denoiser: TableDenoiser, z: Tensor, accepted: Tensor) -> Tensor:
    """[V^L] the factorised prediction at canvas z [L], given that it is accepted."""
    p = exact.log_conditionals(denoiser, z[None], 1.0)[0].exp()
    p = torch.where((z == MASK)[:, None], p, torch.nn.functional.one_hot(z, V).double())
    each = torch.stack([p[position, all_canvases(V, L)[:, position]] for position in range(L)]).prod(dim=0) * accepted
    return each / each.sum()


def conditioned_chain(steps: int | None, denoiser: TableDenoiser, start: Tensor, accepted: Tensor) -> Tensor:
    """[V^L] the law of what uniform order writes when each call draws from `completions` and reveals some of it."""

    def kernel(z: Written, revealed: Places) -> Iterator[tuple[Written, float]]:
        for x, p in zip(
            all_canvases(V, L).tolist(), completions(denoiser, torch.tensor(z), accepted).tolist(), strict=True
        ):
            yield tuple(x[i] if i in revealed else z[i] for i in range(L)), p

    return revealing_chain(steps, start, kernel)


def ending_chain(steps: int | None, denoiser: TableDenoiser, start: Tensor, eos: int) -> Tensor:
    """[V^L] the law of uniform order whose calls let one number say which of their positions are EOS."""

    def kernel(z: Written, revealed: Places) -> Iterator[tuple[Written, float]]:
        p = exact.log_conditionals(denoiser, torch.tensor(z)[None], 1.0)[0].exp()
        chance = end_chances(z, revealed, p[:, eos].tolist(), eos)
        cuts = sorted({0.0, 1.0, *chance.values()})
        for low, high in itertools.pairwise(cuts):
            text = [i for i in revealed if chance[i] <= low]
            others = p[text].index_fill(1, torch.tensor([eos]), 0.0)
            others = others / others.sum(dim=1, keepdim=True)
            for tokens in itertools.product(range(V), repeat=len(text)):
                drawn = dict.fromkeys(revealed, eos) | dict(zip(text, tokens, strict=True))
                share = math.prod(float(row[token]) for row, token in zip(others, tokens, strict=True))
                yield tuple(drawn.get(i, z[i]) for i in range(L)), (high - low) * share

    return revealing_chain(steps, start, kernel)


def end_chances(z: Written, revealed: Places, end: list[float], eos: int) -> dict[int, float]:
    """The chance of EOS at each position to be revealed: known, or half-way between two rising sequences."""
    last_text = max((i for i in range(L) if z[i] not in (MASK, eos)), default=-1)
    first_end = min((i for i in range(L) if z[i] == eos), default=L)
    open_ones = [i for i in revealed if last_text < i < first_end]
    chance = {i: float(i > first_end) for i in revealed}
    for i in open_ones:
        before, behind = [end[j] for j in open_ones if j <= i], [end[j] for j in open_ones if j >= i]
        chance[i] = (max(before) + min(behind)) / 2
    return chance


def revealing_chain(steps: int | None, start: Tensor, kernel: Kernel) -> Tensor:
    """[V^L] the law of what uniform order writes when each call's tokens are drawn by a kernel."""
    law = {tuple(start.tolist()): 1.0}
    for rest in reversed(range(steps or int((start == MASK).sum()))):
        after: dict[Written, float] = defaultdict(float)
        for z, chance in law.items():
            masked = [i for i in range(L) if z[i] == MASK]
            for size in range(len(masked) + 1):
                share = reveal_chance(steps, rest, len(masked), size)
                for revealed in itertools.combinations(masked, size) if share > 0 else ():
                    for new, p in kernel(z, revealed):
                        after[new] += chance * share * p
        law = after
    out = torch.zeros(V**L, dtype=torch.float64)
    for z, chance in law.items():
        if chance > 0:
            out[int((torch.tensor(z) * WEIGHTS).sum())] += chance
    return out


def reveal_chance(steps: int | None, rest: int, masks: int, size: int) -> float:
    """That of one set of `size` among `masks` masks to be revealed by the call before the last `rest`."""
    if steps is None:
        return float(size == 1) / masks
    return (1 / (rest + 1)) ** size * (rest / (rest + 1)) ** (masks - size)


def counts(state: State) -> Tensor:
    return torch.bincount((state.ids * WEIGHTS).sum(dim=1), minlength=V**L)
