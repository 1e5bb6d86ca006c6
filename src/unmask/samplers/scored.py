"""Particles weighed by any score of the text: their law goes to p(x) exp(score(x)) / Z.

Each call draws the whole canvas from the prediction and writes the part of it that it would have written anyway. What
was drawn is scored, and the weight of a walk grows by exp of how its score has changed since the call before; over a
whole walk this adds up to the score of the finished text, whatever the scores between were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from unmask.samplers.base import Drawn, Evidence, JointRule, Positions, State
from unmask.samplers.draws import TokenRule

Head = Callable[[Tensor], Tensor]
Score = Callable[[Tensor, Tensor], Tensor]
"""Finished canvases [B, L] and where they are real [B, L], to scores [B]."""
ROWS_AT_ONCE = 512
"""Positions whose logits are in memory at once."""


class Scored(JointRule):
    """A rule whose walks are weighed by a score. What is written is bit for bit what the rule alone would write."""

    def __init__(self, rule: TokenRule | JointRule, score: Score) -> None:
        self.rule = rule
        self.score = score
        self.eos = rule.eos if isinstance(rule, JointRule) else None

    def choose_jointly(self, head: Head, hidden: Tensor, state: State, at: Positions, wanted: Positions) -> Drawn:
        whole, trust = state.ids.clone(), torch.ones(state.ids.shape, device=hidden.device)
        for chosen, tokens, confidence in self._draws(head, hidden, state, at, wanted):
            whole[chosen], trust[chosen] = tokens, confidence.float()
        return Drawn(whole[wanted], trust[wanted], self._evidence(state, whole))

    def _draws(
        self, head: Head, hidden: Tensor, state: State, at: Positions, wanted: Positions
    ) -> Iterator[tuple[Positions, Tensor, Tensor]]:
        """Positions, their tokens and confidences, of all masked positions and last of those that are wanted."""
        if isinstance(self.rule, JointRule):
            for chosen in (at, wanted):
                drawn = self.rule.choose_jointly(head, hidden, state, at, chosen)
                yield chosen, drawn.tokens, drawn.confidence
            return
        for part in torch.arange(len(hidden), device=hidden.device).split(ROWS_AT_ONCE):
            row, place = at.rows[part], at.places[part]
            seeds, late = state.canvas.seeds[row], state.late(self.rule, row)
            yield Positions(row, place), *self.rule.choose(head(hidden[part]), seeds, state.call, place, late_N=late)

    def _evidence(self, state: State, whole: Tensor) -> Evidence:
        """Here `log_rest` is the score that is in the weight already."""
        score = self.score(whole, state.canvas.attention_mask).to(whole.device, torch.float64)
        before = state.evidence or Evidence(torch.zeros_like(score), torch.zeros_like(score))
        return Evidence(before.log_weight + score - before.log_rest, score)
