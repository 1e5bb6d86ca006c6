"""How an order sees predictions: as they are, or, where texts end, with the text before its end."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from unmask.samplers.base import Positions, State


class Prospect(NamedTuple):
    """By what an order judges N positions: their predictions `log_p` [N, V], whether all is `settled` [N] whatever the
    network says, and the chance [N] of `text`, beside which a planner's word is for nothing."""

    log_p: Tensor
    settled: Tensor
    text: Tensor


Outlook = Callable[[Tensor, "Positions"], Prospect]
"""Predictions [N, V], in logs, at positions of a canvas to what an order may make of them."""


def as_predicted(log_p: Tensor, at: Positions) -> Prospect:
    """An order goes by the predictions themselves."""
    return Prospect(log_p, torch.zeros_like(at.rows, dtype=torch.bool), log_p.new_ones(len(at.rows)))


def text_first(state: State, eos: int) -> Outlook:
    """An end that is only foreseen says nothing about the text: its chance is spread over the vocabulary.

    Of all tokens of a blank row the last EOS is the surest, and the surest first would be no text at all.
    """
    return partial(_foreseen, Known.of(state, eos), eos)


class Known(NamedTuple):
    """[B] each: the last place that is text and the first that is EOS, as far as is known; `torn` rows have text behind
    EOS, and there every position is for itself."""

    last_text: Tensor
    first_end: Tensor
    torn: Tensor

    @classmethod
    def of(cls, state: State, eos: int) -> Known:
        """What the canvas says of texts and their ends."""
        place = torch.arange(state.ids.shape[1], device=state.ids.device)
        there = ~state.masked & state.canvas.attention_mask
        ends = state.ids == eos
        last_text = place.where(there & ~ends, -1).amax(dim=1)
        first_end = place.where(there & ends, len(place)).amin(dim=1)
        return cls(last_text, first_end, last_text > first_end)

    def settled(self, at: Positions) -> tuple[Tensor, Tensor]:
        """[N] whether positions must be text, and whether they must be EOS."""
        row, place = at
        return (place < self.last_text[row]) & ~self.torn[row], (place > self.first_end[row]) & ~self.torn[row]


def _foreseen(known: Known, eos: int, log_p: Tensor, at: Positions) -> Prospect:
    text, over = known.settled(at)
    torn, size = known.torn[at.rows], log_p.shape[1]
    is_eos = torch.arange(size, device=log_p.device) == eos
    words = log_p.masked_fill(is_eos, -torch.inf)
    seen = torch.logaddexp(words, log_p[:, eos, None] - math.log(size))
    seen = words.log_softmax(-1).where(text[:, None], seen)
    seen = torch.zeros_like(log_p).masked_fill(~is_eos, -torch.inf).where(over[:, None], seen)
    chance = (1.0 - log_p[:, eos].exp()).masked_fill(text | torn, 1.0)
    return Prospect(log_p.where(torn[:, None], seen), over, chance)
