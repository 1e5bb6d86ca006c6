"""The law of walks that choose positions by what the network says of them, by enumeration of every canvas.

Nothing here calls a sampler: one sequence at a time, in float64, positions sorted as numbers are by Python.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmask.laws import exact
from unmask.laws.tables import every_canvas

Chances = list[list[float]]
"""x_theta at every position of a canvas."""
Sets = list[tuple[float, tuple[int, ...]]]
Canvases = list[tuple[tuple[int, ...], float]]
Choice = Callable[[Chances, list[int], int], Sets]
"""(x_theta, masked positions, call): the sets of positions that the call may write, each with its chance."""


def chosen_law(denoiser: Any, start: Tensor, choose: Choice) -> Tensor:
    """[V^L] the law of finished canvases when each call from `start` [L] writes what `choose` says.

    The network is told how much of what is to be written is.
    """
    V, mask = denoiser.config.vocab_size, denoiser.config.mask_token_id
    canvases = every_canvas(V, len(start))
    written = 1.0 - (canvases == mask).sum(dim=1).double() / max(1, int((start == mask).sum()))
    x_theta = exact.log_conditionals(denoiser, canvases, written).exp().tolist()
    law = {tuple(start.tolist()): 1.0}
    for call in itertools.count():
        if not any(mask in z for z in law):
            break
        after: dict[tuple[int, ...], float] = {}
        for z, chance in law.items():
            said = x_theta[sum(token * V**position for position, token in enumerate(z))]
            for new, likely in _next(z, said, mask, choose, call):
                after[new] = after.get(new, 0.0) + chance * likely
        law = after
    out = torch.zeros(len(canvases), dtype=torch.float64)
    for z, chance in law.items():
        out[sum(token * V**position for position, token in enumerate(z))] = chance
    return out


def _next(z: tuple[int, ...], said: Chances, mask: int, choose: Choice, call: int) -> Canvases:
    """The canvases that one call can make of another, with their chances."""
    masked = [position for position, token in enumerate(z) if token == mask]
    if not masked:
        return [(z, 1.0)]
    out: Canvases = []
    for chance, places in choose(said, masked, call):
        for tokens in itertools.product(range(len(said[0])), repeat=len(places)):
            new = list(z)
            for place, token in zip(places, tokens, strict=True):
                new[place] = token
            likely = math.prod(said[place][token] for place, token in zip(places, tokens, strict=True))
            if likely:
                out.append((tuple(new), chance * likely))
    return out


def in_portions(order: str, portions: list[int]) -> Choice:
    """So many positions a call, in an order."""

    def choose(said: Chances, masked: list[int], call: int) -> Sets:
        if order == "uniform":
            sets = list(itertools.combinations(masked, portions[call]))
            return [(1.0 / len(sets), one) for one in sets]
        return [(1.0, tuple(_best_first(order, said, masked)[: portions[call]]))]

    return choose


def above(threshold: float, by: str) -> Choice:
    """All positions that are likelier right than a threshold, as the network or its planner thinks, or the surest."""
    worth = _planned if by == "planner" else max

    def choose(said: Chances, masked: list[int], call: int) -> Sets:
        sure = tuple(position for position in masked if worth(said[position]) > threshold)
        return [(1.0, sure or tuple(_best_first(by, said, masked)[:1]))]

    return choose


def within_entropy(gamma: float) -> Choice:
    """The largest set, in order of entropy, whose sum of entropies less the largest is at most gamma."""

    def choose(said: Chances, masked: list[int], call: int) -> Sets:
        ranked = _best_first("entropy", said, masked)
        sums = [sum(_entropy(said[position]) for position in ranked[:size]) for size in range(len(masked))]
        return [(1.0, tuple(ranked[: sum(one <= gamma for one in sums)]))]

    return choose


def _best_first(order: str, said: Chances, masked: list[int]) -> list[int]:
    """Masked positions in their order; of equal ones the first is first."""
    worth: dict[str, Callable[[int], float]] = {
        "left_to_right": lambda position: -position,
        "confidence": lambda position: max(said[position]),
        "margin": lambda position: sorted(said[position])[-1] - sorted(said[position])[-2],
        "entropy": lambda position: -_entropy(said[position]),
        "planner": lambda position: _planned(said[position]),
    }
    return sorted(masked, key=lambda position: -worth[order](position))


def _planned(row: list[float]) -> float:
    """The chance that the planner of a table gives."""
    return 1 / (1 + math.exp(-4 * sum(p * math.sin(2 * token + 1) for token, p in enumerate(row))))


def _entropy(row: list[float]) -> float:
    return -sum(p * math.log(p) for p in row if p)
