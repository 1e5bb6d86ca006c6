"""Texts that end: where EOS stands, nothing but EOS stands behind it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.random import Purpose, exponential
from unmask.samplers.base import Drawn, JointRule, Positions, State
from unmask.samplers.draws import TokenRule, draw, rows_at_once

Head = Callable[[Tensor], Tensor]


class Ending(JointRule):
    """A token rule for rows that are a text and then EOS to their end, as `supervised_eos` makes them.

    A network asked for several tokens at once may end a text in its middle, and go on behind the end. Here each call
    draws exactly from its prediction given that the row has this form: first where the text ends, then its tokens. With
    e_i the chance of EOS at position i the text has k tokens with a chance in proportion to
    prod_{i < k} (1 - e_i) prod_{i >= k} e_i. Where the rule's cuts or given tokens leave no end, tokens are drawn each
    by itself.
    """

    def __init__(self, rule: TokenRule, eos: int) -> None:
        self.rule = rule
        self.soft = rule.model_copy(update={"greedy_tail": None, "greedy_above": None})
        """By which the end is drawn: where every token is the most likely one, hardly any row has an end."""
        self.eos = eos
        self.greedy = rule.temperature == 0

    def choose_jointly(self, head: Head, hidden: Tensor, state: State, at: Positions, wanted: Positions) -> Drawn:
        size, free = self._size_of_text(head, hidden, state, at)
        number = torch.zeros_like(state.ids)
        number[at] = torch.arange(len(at.rows), device=number.device)
        tokens, confidence = [], []
        for part in _parts(len(wanted.rows), hidden, head):
            row, place = wanted.rows[part], wanted.places[part]
            log_p = head(hidden[number[row, place]]).float().log_softmax(-1)
            token = self._tokens(self._open(log_p, place < size[row], free[row]), state, row, place)
            tokens.append(token)
            confidence.append(log_p.gather(1, token[:, None])[:, 0].exp())
        return Drawn(torch.cat(tokens), torch.cat(confidence), None)

    def _tokens(self, log_p: Tensor, state: State, row: Tensor, place: Tensor) -> Tensor:
        """[N] chosen from a prediction [N, V] for positions (row, place) [N], as far as it is open."""
        if self.greedy:
            return log_p.argmax(-1)
        late = self.rule.late_from(state.calls)
        log_w = self.rule.truncate(log_p, None if late is None else (state.call >= late)[row])
        return draw(log_w, state.canvas.seeds[row], state.call, place)

    def _size_of_text(self, head: Head, hidden: Tensor, state: State, at: Positions) -> tuple[Tensor, Tensor]:
        """[B] tokens before the end, drawn; and [B] whether a sequence cannot have an end."""
        log_end, log_other = self._given(state)
        for part in _parts(len(at.rows), hidden, head):
            row, place = at.rows[part], at.places[part]
            log_end[row, place], log_other[row, place] = self._split(head(hidden[part]).float().log_softmax(-1))
        before = torch.nn.functional.pad(log_other.cumsum(dim=1), (1, 0))
        behind = torch.nn.functional.pad(log_end.flip(1).cumsum(dim=1).flip(1), (0, 1))
        log_k = before + behind
        if not self.greedy:
            k = torch.arange(log_k.shape[1], device=log_k.device)
            log_k = log_k - exponential(state.canvas.seeds[:, None], Purpose.PATH, state.call, 0, k[None]).log()
        best = log_k.max(dim=1)
        return best.indices, best.values.isneginf()

    def _given(self, state: State) -> tuple[Tensor, Tensor]:
        """[B, L] twice: the log-chances of EOS and of another token where it is known which it is; pads are no text."""
        known = torch.zeros(state.ids.shape, dtype=torch.float64, device=state.ids.device)
        ends = (state.ids == self.eos) | ~state.canvas.attention_mask
        return known.masked_fill(~ends, -torch.inf), known.masked_fill(ends, -torch.inf)

    def _split(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """[N] twice: the log-weight of EOS, and that of all other tokens (for greedy choices of the best of them)."""
        log_w = (log_p if self.greedy else self.soft.truncate(log_p)).double()
        others = log_w.index_fill(1, torch.tensor([self.eos], device=log_w.device), -torch.inf)
        return log_w[:, self.eos], others.amax(dim=1) if self.greedy else others.logsumexp(dim=1)

    def _open(self, log_p: Tensor, inside: Tensor, free: Tensor) -> Tensor:
        """A prediction [N, V], EOS closed `inside` [N] a text and all else behind it, except where `free` [N]."""
        is_eos = torch.arange(log_p.shape[1], device=log_p.device) == self.eos
        closed = (is_eos == inside[:, None]) & ~free[:, None]
        return log_p.masked_fill(closed, -torch.inf).log_softmax(-1)


def _parts(count: int, hidden: Tensor, head: Head) -> tuple[Tensor, ...]:
    """Numbers of rows that go through the head together."""
    vocabulary = head(hidden[:1]).shape[-1]
    return torch.arange(count, device=hidden.device).split(rows_at_once(hidden.device, vocabulary))
