"""Sampling of rows that hold a text followed by EOS up to their end, as in the length policy `supervised_eos`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unmask.random import Purpose, uniform
from unmask.samplers.base import Head, JointTokenSampler, Positions, Prediction, State, TokenDraw
from unmask.samplers.token_sampling import TokenSampler, rows_per_chunk, sample_tokens


@dataclass(frozen=True)
class TextEnds:
    """What is known about the end of each text on a partly written canvas, [B] each.

    `last_text` is the last position known to be text, `first_eos` that of the first known EOS. Rows that are `mixed`
    have text after EOS, so nothing follows from their known positions.
    """

    eos: int
    last_text: Tensor
    first_eos: Tensor
    mixed: Tensor

    @classmethod
    def of(cls, state: State, eos: int) -> TextEnds:
        position = torch.arange(state.ids.shape[1], device=state.ids.device)
        known, is_eos = ~state.masked & state.canvas.attention_mask, state.ids == eos
        last_text = position.where(known & ~is_eos, -1).amax(dim=1)
        first_eos = position.where(known & is_eos, len(position)).amin(dim=1)
        return cls(eos, last_text, first_eos, last_text > first_eos)

    def known(self, at: Positions) -> tuple[Tensor, Tensor]:
        """[N] whether positions must be text, and [N] whether they must be EOS."""
        row, column = at
        follows = ~self.mixed[row]
        return (column < self.last_text[row]) & follows, (column > self.first_eos[row]) & follows

    def adjust_prediction(self, log_p: Tensor, at: Positions) -> Tensor:
        """Log-probabilities [N, V] for ordering positions: where the end is not known, EOS is spread over all tokens.

        EOS at the end of a blank row is the most certain token of all, so a confidence order would write no text.
        """
        must_be_text, must_be_eos = self.known(at)
        is_eos = torch.arange(log_p.shape[1], device=log_p.device) == self.eos
        text = log_p.masked_fill(is_eos, -torch.inf)
        spread = torch.logaddexp(text, log_p[:, self.eos, None] - math.log(log_p.shape[1]))
        spread = text.log_softmax(-1).where(must_be_text[:, None], spread)
        certain = torch.zeros_like(log_p).masked_fill(~is_eos, -torch.inf)
        spread = certain.where(must_be_eos[:, None], spread)
        return log_p.where(self.mixed[at.rows, None], spread)

    def adjust_planner(self, correct: Tensor, log_p: Tensor, at: Positions) -> Tensor:
        """[N] a planner's probabilities [N], times the probability that the position is text."""
        must_be_text, must_be_eos = self.known(at)
        is_text = (1.0 - log_p[:, self.eos].exp()).masked_fill(must_be_text | self.mixed[at.rows], 1.0)
        return (correct * is_text).masked_fill(must_be_eos, 1.0)


class EosTokenSampler(JointTokenSampler):
    """Draws tokens such that nothing but EOS follows EOS.

    If the positions of one call were drawn independently, EOS could fall in the middle of a text. Here one uniform u
    per sequence and call decides for all of them: position i is EOS where u < e_i, its probability of EOS. Every
    position is then EOS with probability e_i, and the positions agree where the e_i rise along the row. Known tokens
    take precedence: all positions before a known text token are text, all after a known EOS are EOS.
    """

    needs_all_masked: ClassVar[bool] = False

    def __init__(self, token_sampler: TokenSampler, eos: int) -> None:
        self.token_sampler = token_sampler
        self.eos: int = eos
        # the end itself is never drawn greedily: EOS is often the most likely token at every position of a blank row
        not_greedy = token_sampler.model_copy(update={"greedy_tail": None, "greedy_above": None})
        self.eos_sampler = TokenSampler() if token_sampler.temperature == 0 else not_greedy

    def sample_jointly(self, head: Head, prediction: Prediction, state: State, targets: Positions) -> TokenDraw:
        ends, hidden = TextEnds.of(state, self.eos), prediction.hidden_at(targets, state.ids.shape)
        size = rows_per_chunk(hidden.device, head(hidden[:1]).shape[-1])
        parts = []
        for rows, *at in zip(*(x.split(size) for x in (hidden, *targets)), strict=True):
            log_p = head(rows).float().log_softmax(-1)
            parts.append(self._draw_text(log_p, state, ends, Positions(*at)))
        tokens, confidence, p_eos, eos_confidence = (torch.cat(column) for column in zip(*parts, strict=True))
        is_eos = self._draw_eos(p_eos, state, ends, targets)
        return TokenDraw(tokens.masked_fill(is_eos, self.eos), torch.where(is_eos, eos_confidence, confidence))

    def _draw_text(
        self, log_p: Tensor, state: State, ends: TextEnds, at: Positions
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[N] each: a token of the text, its confidence, the probability of EOS after truncation, and before."""
        is_eos = torch.arange(log_p.shape[1], device=log_p.device) == self.eos
        text = log_p.masked_fill(is_eos & ~ends.mixed[at.rows, None], -torch.inf).log_softmax(-1)
        if self.token_sampler.temperature == 0:
            token = text.argmax(-1)
        else:
            log_w = self.token_sampler.truncate(text, state.in_greedy_tail(self.token_sampler, at.rows))
            token = sample_tokens(log_w, state.canvas.seeds[at.rows], state.own_call_of(at.rows), at.columns)
        p_eos = self.eos_sampler.truncate(log_p).softmax(-1)[:, self.eos]
        return token, log_p.gather(1, token[:, None])[:, 0].exp(), p_eos.double(), log_p[:, self.eos].exp()

    def _draw_eos(self, p_eos: Tensor, state: State, ends: TextEnds, at: Positions) -> Tensor:
        """[N] whether positions with probabilities `p_eos` [N] of EOS become EOS."""
        must_be_text, must_be_eos = ends.known(at)
        p_eos = p_eos.masked_fill(must_be_text, 0.0).masked_fill(must_be_eos, 1.0)
        u: Tensor | float = 0.5
        if self.token_sampler.temperature:
            u = uniform(state.canvas.seeds, Purpose.PATH, state.own_call)[at.rows]
        return (u < make_rising(p_eos, state.ids.shape, at)) & ~ends.mixed[at.rows]


def make_rising(p: Tensor, shape: torch.Size, at: Positions) -> Tensor:
    """[N] the probabilities `p` [N] at some positions of the canvases, made non-decreasing along each row.

    The result is half-way between the smallest non-decreasing sequence above them and the largest one below.
    """
    above = torch.full(shape, -torch.inf, dtype=p.dtype, device=p.device).index_put(at, p)
    below = torch.full_like(above, torch.inf).index_put(at, p)
    return 0.5 * (above.cummax(dim=1).values[at] + below.flip(1).cummin(dim=1).values.flip(1)[at])
