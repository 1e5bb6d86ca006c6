"""Enumerated output distributions of uniform-order sampling in which each call draws its tokens jointly."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.chains import MASK, L, V
from unmask.laws.tables import TableDenoiser, all_canvases, canvas_index
from unmask.samplers.base import State

Tokens = tuple[int, ...]
Positions = tuple[int, ...]
Kernel = Callable[[Tokens, Positions], Iterator[tuple[Tokens, float]]]
"""(canvas, positions to reveal) -> every next canvas with its probability."""


def completions(denoiser: TableDenoiser, z: Tensor, accepted: Tensor) -> Tensor:
    """[V^L] the factorised prediction at canvas z [L], conditioned on acceptance."""
    p = exact.log_conditionals(denoiser, z[None], 1.0)[0].exp()
    p = torch.where((z == MASK)[:, None], p, torch.nn.functional.one_hot(z, V).double())
    joint = exact.product_over_positions(p[None], all_canvases(V, L))[0] * accepted
    return joint / joint.sum()


def conditioned_chain(steps: int | None, denoiser: TableDenoiser, start: Tensor, accepted: Tensor) -> Tensor:
    """[V^L] the output distribution if each call draws from `completions` and reveals some of its tokens."""

    def kernel(z: Tokens, revealed: Positions) -> Iterator[tuple[Tokens, float]]:
        probabilities = completions(denoiser, torch.tensor(z), accepted).tolist()
        for x, p in zip(all_canvases(V, L).tolist(), probabilities, strict=True):
            yield tuple(x[i] if i in revealed else z[i] for i in range(L)), p

    return revealing_chain(steps, start, kernel)


def ending_chain(steps: int | None, denoiser: TableDenoiser, start: Tensor, eos: int) -> Tensor:
    """[V^L] the output distribution if each call decides with one uniform which of its positions are EOS."""

    def kernel(z: Tokens, revealed: Positions) -> Iterator[tuple[Tokens, float]]:
        p = exact.log_conditionals(denoiser, torch.tensor(z)[None], 1.0)[0].exp()
        eos_probability = end_probabilities(z, revealed, p[:, eos].tolist(), eos)
        cuts = sorted({0.0, 1.0, *eos_probability.values()})
        for low, high in itertools.pairwise(cuts):
            text = [i for i in revealed if eos_probability[i] <= low]
            others = p[text].index_fill(1, torch.tensor([eos]), 0.0)
            others = others / others.sum(dim=1, keepdim=True)
            for tokens in itertools.product(range(V), repeat=len(text)):
                drawn = dict.fromkeys(revealed, eos) | dict(zip(text, tokens, strict=True))
                share = math.prod(float(row[token]) for row, token in zip(others, tokens, strict=True))
                yield tuple(drawn.get(i, z[i]) for i in range(L)), (high - low) * share

    return revealing_chain(steps, start, kernel)


def end_probabilities(z: Tokens, revealed: Positions, end: list[float], eos: int) -> dict[int, float]:
    """The probability of EOS at each revealed position: 0, 1, or half-way between two increasing sequences."""
    last_text = max((i for i in range(L) if z[i] not in (MASK, eos)), default=-1)
    first_end = min((i for i in range(L) if z[i] == eos), default=L)
    between = [i for i in revealed if last_text < i < first_end]
    probability = {i: float(i > first_end) for i in revealed}
    for i in between:
        before, after = [end[j] for j in between if j <= i], [end[j] for j in between if j >= i]
        probability[i] = (max(before) + min(after)) / 2
    return probability


def revealing_chain(steps: int | None, start: Tensor, kernel: Kernel) -> Tensor:
    """[V^L] the output distribution of uniform order if a kernel draws the tokens of each call."""
    state = {tuple(start.tolist()): 1.0}
    for remaining in reversed(range(steps or int((start == MASK).sum()))):
        after: dict[Tokens, float] = defaultdict(float)
        for z, p_z in state.items():
            masked = [i for i in range(L) if z[i] == MASK]
            for size in range(len(masked) + 1):
                p_set = set_probability(steps, remaining, len(masked), size)
                for revealed in itertools.combinations(masked, size) if p_set > 0 else ():
                    for new, p in kernel(z, revealed):
                        after[new] += p_z * p_set * p
        state = after
    out = torch.zeros(V**L, dtype=torch.float64)
    for z, p_z in state.items():
        if p_z > 0:  # NaN at canvases that cannot occur
            out[canvas_index(torch.tensor(z), V)] += p_z
    return out


def set_probability(steps: int | None, remaining: int, masks: int, size: int) -> float:
    """The probability that a call reveals one set of `size` of `masks` masks, with `remaining` calls after it."""
    if steps is None:
        return float(size == 1) / masks
    return (1 / (remaining + 1)) ** size * (remaining / (remaining + 1)) ** (masks - size)


def counts(state: State) -> Tensor:
    return torch.bincount(canvas_index(state.ids, V), minlength=V**L)
