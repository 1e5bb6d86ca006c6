"""How long a blank is to be: the number of tokens with which the known ones are likeliest.

The blank is held masked, and what is compared is the bound of the known tokens alone: of equally many, whatever the
length, drawn with the same tokens hidden each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.errors import UnmaskError
from unmask.objectives.base import Noise
from unmask.objectives.subs import MaskCount
from unmask.random import Purpose, uniform
from unmask.schedules import Schedule
from unmask.scribe import Scribe
from unmask.templates import Part
from unmask.times import van_der_corput

TOGETHER = 64
"""Combinations up to which the lengths of several blanks are chosen together."""
MOST = TOGETHER**2
"""Combinations among which one that will do is looked for."""
DRAWS, FIRST = 16, 4
"""Draws of the bound, of which the first few tell which quarter of the lengths is worth the others."""
ROWS_AT_ONCE = 64

Nats = Callable[[list[list[Part]], range], list[float]]
"""Draws, by their numbers, of the bound of the known tokens of texts, summed."""


class Demand(NamedTuple):
    """What else is asked of a text whose blanks have lengths: whether it `fits`, and the reason where it does not."""

    fits: Callable[[list[Part]], bool]
    reason: Callable[[list[Part]], str]


NOTHING = Demand(lambda parts: True, lambda parts: "")


def settle(parts: Sequence[Part], nats: Nats, room: float = math.inf, demand: Demand = NOTHING) -> list[Part]:
    """A text whose blanks have one length each, with which they fit into the room that there is for all of them and
    into what else is asked: of all combinations the best where they are few.

    Otherwise one blank after the other, from the left, those to its right as short as they may be.
    """
    every = combinations(parts, room)
    fitting = filter(demand.fits, every)
    chosen, count = next(fitting, None), math.prod(map(len, _choices(parts)))
    if chosen is None and count > MOST:
        raise UnmaskError(f"None of the {MOST} lengths of the blanks that were tried will do; narrow their ranges.")
    if chosen is None:
        longest = max(every, key=_size)
        raise UnmaskError(f"No length of the blanks will do; with the longest: {demand.reason(longest)}")
    if count <= TOGETHER:
        return _best([chosen, *fitting], nats)
    for place, part in enumerate(parts):
        if isinstance(part, range):
            tried = [[*chosen[:place], one, *chosen[place + 1 :]] for one in part]
            chosen = _best([one for one in tried if _size(one) <= room and demand.fits(one)], nats)
    return chosen


def combinations(parts: Sequence[Part], room: float) -> list[list[Part]]:
    """A text with every length of its blanks for which there is room, from the shortest on; of very many the first."""
    every = [list(one) for one in islice(product(*_choices(parts)), MOST) if _size(one) <= room]
    if not every:
        raise UnmaskError(_too_long(parts, room))
    return every


def _choices(parts: Sequence[Part]) -> list[list[Part]]:
    return [list(part) if isinstance(part, range) else [part] for part in parts]


def _size(parts: Sequence[Part]) -> int:
    """Tokens of all blanks."""
    return sum(part for part in parts if isinstance(part, int))


def _too_long(parts: Sequence[Part], room: float) -> str:
    longest = max((part for part in parts if isinstance(part, range)), key=lambda part: part.start)
    named = f"[MASK:{longest.start}-{longest.stop - 1}]"
    return f"There is room for {max(0, room)} tokens in blanks, and {named} does not fit in; shorten it or the text."


def _best(candidates: list[list[Part]], nats: Nats) -> list[Part]:
    if len(candidates) == 1:
        return candidates[0]
    first = nats(candidates, range(FIRST))
    hopeful = sorted(range(len(candidates)), key=first.__getitem__)[: max(2, math.ceil(len(candidates) / 4))]
    others = nats([candidates[i] for i in hopeful], range(FIRST, DRAWS))
    total = {i: first[i] + more for i, more in zip(hopeful, others, strict=True)}
    return candidates[min(total, key=total.__getitem__)]


def nats_of_known(denoiser: Any, schedule: Schedule, scribe: Scribe, device: torch.device) -> Nats:
    """The judge of lengths that a network is."""
    if scribe.card.objective.causal:
        raise UnmaskError("An autoregressive model cannot tell how long a blank is; give a number, as in [MASK:3].")

    def nats(candidates: list[list[Part]], draws: range) -> list[float]:
        numbers = torch.tensor(draws, device=device)
        return [_nats(denoiser, schedule, scribe, scribe.blank_ids(parts), numbers) for parts in candidates]

    return nats


@torch.no_grad()
def _nats(denoiser: Any, schedule: Schedule, scribe: Scribe, ids: list[int], draws: Tensor) -> float:
    """The bound of the tokens that are no masks, given that the masks stay; the frame of the row is not counted."""
    device = draws.device
    row = torch.tensor(scribe.blank_row(ids), device=device)
    known = (row != scribe.mask) & (torch.arange(len(row), device=device) < len(ids))
    total = 0.0
    for draw in draws.split(ROWS_AT_ONCE):
        batch = Batch.of(row.expand(len(draw), -1), frozen=~known.expand(len(draw), -1))
        terms = MaskCount().loss(denoiser, batch, schedule, _noise(draw, known))
        total += float(terms.total)
    return total


def _noise(draw: Tensor, known: Tensor) -> Noise:
    """For the draws [B]: times that every few spread evenly, and numbers [B, L] of a known token wherever it stands."""
    number = known.cumsum(dim=0) - 1
    u = uniform(0, Purpose.MASK, draw[:, None], position=number[None])
    return Noise((van_der_corput(DRAWS, draw.device)[draw % DRAWS] + 0.5) / DRAWS, u)
