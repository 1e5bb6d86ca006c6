"""Texts that end: where EOS stands, nothing but EOS stands behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from unmask.random import Purpose, uniform
from unmask.samplers.base import Drawn, JointTokenSampler, Known, Positions, State
from unmask.samplers.token_sampling import TokenSampler, rows_at_once, sample_tokens

Head = Callable[[Tensor], Tensor]


class Ending(JointTokenSampler):
    """A token rule for rows that are a text and then EOS to their end, as `supervised_eos` makes them.

    A network asked for several tokens at once may end a text in its middle, and go on behind the end. Here one number
    u decides for all positions of a call: position i is EOS where u < e_i, its chance of EOS. Every position then
    ends with just the chance it was given, and where these chances rise along the row, as those of an end do, so do
    the positions together. What is known comes first: all is text before a text's token, all is EOS behind EOS.
    """

    sees_all: ClassVar[bool] = False

    def __init__(self, rule: TokenSampler, eos: int) -> None:
        self.rule = rule
        self.soft = TokenSampler() if rule.temperature == 0 else rule.model_copy(update=SOFT)
        """By which the end is drawn: where every token is the most likely one, EOS is, and hardly any row has text."""
        self.eos: int = eos

    def sample_jointly(self, head: Head, hidden: Tensor, state: State, at: Positions, wanted: Positions) -> Drawn:
        known = Known.of(state, self.eos)
        number = torch.zeros_like(state.ids)
        number[at] = torch.arange(len(at.rows), device=number.device)
        parts = [
            self._options(head(hidden[number[row, place]]), state, known, Positions(row, place))
            for row, place in zip(*(x.split(_size(hidden, head)) for x in wanted), strict=True)
        ]
        options = Options(*(torch.cat(column) for column in zip(*parts, strict=True)))
        ends = self._ends(options.end, state, known, wanted)
        tokens = options.token.masked_fill(ends, self.eos)
        return Drawn(tokens, torch.where(ends, options.sure_of_end, options.sure), None)

    def _options(self, logits: Tensor, state: State, known: Known, at: Positions) -> Options:
        log_p = logits.float().log_softmax(-1)
        is_eos = torch.arange(log_p.shape[1], device=log_p.device) == self.eos
        text = log_p.masked_fill(is_eos & ~known.torn[at.rows, None], -torch.inf).log_softmax(-1)
        token = self._tokens(text, state, at)
        end = self.soft.truncate(log_p).softmax(-1)[:, self.eos]
        return Options(token, log_p.gather(1, token[:, None])[:, 0].exp(), end.double(), log_p[:, self.eos].exp())

    def _tokens(self, log_p: Tensor, state: State, at: Positions) -> Tensor:
        if self.rule.temperature == 0:
            return log_p.argmax(-1)
        log_w = self.rule.truncate(log_p, state.late(self.rule, at.rows))
        return sample_tokens(log_w, state.canvas.seeds[at.rows], state.call, at.places)

    def _ends(self, end: Tensor, state: State, known: Known, at: Positions) -> Tensor:
        """[N] whether positions whose chances of EOS are `end` [N] are EOS."""
        text, over = known.settled(at)
        u = uniform(state.canvas.seeds, Purpose.PATH, state.call)[at.rows] if self.rule.temperature else 0.5
        chance = end.masked_fill(text, 0.0).masked_fill(over, 1.0)
        return (u < rising(chance, state.ids.shape, at)) & ~known.torn[at.rows]


SOFT = {"greedy_tail": None, "greedy_above": None}


class Options(NamedTuple):
    """[N] each: the text's token if there is one and the prediction's chance of it, the chance of EOS by the rule, and
    by the prediction."""

    token: Tensor
    sure: Tensor
    end: Tensor
    sure_of_end: Tensor


def rising(chance: Tensor, shape: torch.Size, at: Positions) -> Tensor:
    """[N] the chances of positions of canvases, made to rise along each row.

    Half-way between the lowest that rise and are nowhere below them, and the highest that are nowhere above.
    """
    above = torch.full(shape, -torch.inf, dtype=chance.dtype, device=chance.device).index_put(at, chance)
    below = torch.full_like(above, torch.inf).index_put(at, chance)
    return 0.5 * (above.cummax(dim=1).values[at] + below.flip(1).cummin(dim=1).values.flip(1)[at])


def _size(hidden: Tensor, head: Head) -> int:
    """Rows that go through the head together."""
    return rows_at_once(hidden.device, head(hidden[:1]).shape[-1])
