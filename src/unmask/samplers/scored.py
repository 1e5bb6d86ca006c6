"""Particles weighed by any score of the text: their law goes to p(x) exp(score(x)) / Z.

Each call draws the whole canvas from the prediction and writes the part of it that it would have written anyway. What
was drawn is scored, and the weight of a walk grows by exp of how its score has changed since the call before; over a
whole walk this adds up to the score of the finished text, whatever the scores between were.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unmask.samplers.base import Drawn, Evidence, JointRule, Positions, State
from unmask.samplers.draws import TokenRule

Score = Callable[[Tensor, Tensor], Tensor]
"""Finished canvases [B, L] and where they are real [B, L], to scores [B]."""
ROWS_AT_ONCE = 512
"""Positions whose logits are in memory at once."""


class Scored(JointRule):
    """A token rule whose walks are weighed by a score."""

    def __init__(self, rule: TokenRule, score: Score) -> None:
        self.rule = rule
        self.score = score

    def choose_jointly(
        self, head: Callable[[Tensor], Tensor], hidden: Tensor, state: State, at: Positions, wanted: Positions
    ) -> Drawn:
        """What is written is bit for bit what the rule alone would write."""
        whole, trust = state.ids.clone(), torch.ones(state.ids.shape, device=hidden.device)
        for part in torch.arange(len(hidden), device=hidden.device).split(ROWS_AT_ONCE):
            row, place = at.rows[part], at.places[part]
            tokens, confidence = self.rule.choose(head(hidden[part]), state.canvas.seeds[row], state.call, place)
            whole[row, place], trust[row, place] = tokens, confidence.float()
        return Drawn(whole[wanted], trust[wanted], self._evidence(state, whole))

    def _evidence(self, state: State, whole: Tensor) -> Evidence:
        """Here `log_rest` is the score that is in the weight already."""
        score = self.score(whole, state.canvas.attention_mask).to(whole.device, torch.float64)
        before = state.evidence or Evidence(torch.zeros_like(score), torch.zeros_like(score))
        return Evidence(before.log_weight + score - before.log_rest, score)
