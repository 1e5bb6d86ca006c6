"""Left to right with a key-value cache, for the causal twin."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch

from unmask.errors import UnmaskError
from unmask.samplers.base import Canvas, Sampler, State
from unmask.samplers.draws import TokenRule


class LeftToRight(Sampler):
    """One token a call. Given tokens are read, never written; rows of a batch may have prompts of any length."""

    name: Literal["ar"] = "ar"
    causal: ClassVar[bool] = True

    def begin(self, canvas: Canvas) -> State:
        masked = canvas.masked
        after = masked * torch.arange(1, masked.shape[1] + 1, device=masked.device)
        last, first = after.max(dim=1).values, masked.int().argmax(dim=1)
        begin = int(first[masked.any(dim=1)].min()) if masked.any() else 0
        total = int(last.max()) - begin
        return State.start(canvas, last - first, total, {"first": begin, "cache": None})

    def step(self, denoiser: Any, state: State, rule: TokenRule) -> State:
        position = state.plan["first"] + state.call
        bos = denoiser.config.bos_token_id
        before = self._before(state, position, bos)
        if state.plan["cache"] is None:
            state.plan["cache"] = denoiser.new_cache()
        else:
            before = before[:, -1:]
        hidden = denoiser.hidden(before, past_key_values=state.plan["cache"])
        rows = state.canvas.masked[:, position].nonzero()[:, 0]
        at = torch.full_like(rows, position)
        logits = denoiser.head(hidden[rows, -1])
        tokens, confidence = rule.choose(logits, state.canvas.seeds[rows], position, at)
        return state.write(rows, at, tokens, confidence)

    @staticmethod
    def _before(state: State, position: int, bos: int | None) -> torch.Tensor:
        """[B, position (+1)] what the network reads to predict `position`."""
        if bos is not None:
            begin = torch.full_like(state.ids[:, :1], bos)
            return torch.cat([begin, state.ids[:, :position]], dim=1)
        if position == 0:
            raise UnmaskError("This network has no begin token, so it cannot write the first one: give it a prompt.")
        return state.ids[:, :position]
