"""Left to right with a key-value cache, for the causal twin. Nothing between two tokens waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.models.attention import StaticCache
from unmask.models.inference import CudaGraph, can_capture
from unmask.samplers.base import Canvas, JointTokenSampler, Sampler, State
from unmask.samplers.token_sampling import TokenSampler, is_fused

Choice = Callable[[], tuple[Tensor, Tensor]]

WORTH_CAPTURING = 16
"""Calls of one shape that are left, from which on a graph saves more time than it takes to record."""


@dataclass
class AutoregressivePlan:
    """Positions first, first + 1, ... are written one a call: `rows[i]` [N] are the sequences that call i writes."""

    first: int
    rows: tuple[Tensor, ...]
    reader: Reader | None = None


class AutoregressiveSampler(Sampler):
    """One token a call. Given tokens are read, never written; rows of a batch may have prompts of any length."""

    name: Literal["ar"] = "ar"
    causal: ClassVar[bool] = True

    def begin(self, canvas: Canvas) -> State:
        masked = np.array(canvas.masked.tolist()).reshape(canvas.ids.shape)
        written = np.flatnonzero(masked.any(axis=0))
        first, total = (int(written[0]), int(written[-1] - written[0] + 1)) if len(written) else (0, 0)
        ends = masked.shape[1] - masked[:, ::-1].argmax(axis=1)
        calls = torch.as_tensor((ends - masked.argmax(axis=1)) * masked.any(axis=1), device=canvas.ids.device)
        by_call = masked[:, first : first + total].T
        rows = torch.as_tensor(np.nonzero(by_call)[1], device=canvas.ids.device)
        state = State.start(canvas, calls, total, AutoregressivePlan(first, rows.split(by_call.sum(axis=1).tolist())))
        begins = (masked.argmax(axis=1) - first) * masked.any(axis=1)
        return replace(state, idle_calls=torch.as_tensor(begins, device=canvas.ids.device)) if begins.any() else state

    def step(self, denoiser: Any, state: State, rule: TokenSampler | JointTokenSampler) -> State:
        if isinstance(rule, JointTokenSampler):
            raise UnmaskError("An autoregressive model does not see the rest of its canvas; constrain a masked one.")
        plan: AutoregressivePlan = state.plan
        position = plan.first + state.call
        if plan.reader is None:
            plan.reader = Reader(denoiser, rule, state.canvas.seeds, plan.first + state.total, self._late(state, rule))
            tokens, confidence = plan.reader.read_prompt(state.ids[:, :position])
        else:
            tokens, confidence = plan.reader.read_token(state.ids[:, position - 1 : position], position)
        rows = plan.rows[state.call]
        return state.write(rows, torch.full_like(rows, position), tokens[rows], confidence[rows])

    def _late(self, state: State, rule: TokenSampler) -> Tensor | None:
        """[B] the position from which on each sequence is in its greedy tail."""
        late = rule.late_from(state.calls)
        return None if late is None else late + state.canvas.masked.long().argmax(dim=1)


class Reader:
    """One network and one rule on their way through the sequences of a canvas, up to position `end`.

    A reading gives tokens and confidences [B] for the position behind it. What changes from call to call lies in
    tensors that stay where they are, and `_choose` looks at nothing else: on a GPU it becomes a graph for every reach
    of the cache.
    """

    def __init__(self, denoiser: Any, rule: TokenSampler, seeds: Tensor, end: int, late: Tensor | None = None) -> None:
        self.denoiser = denoiser
        self.late = late
        self.rule = rule
        self.seeds = seeds
        self.end = end
        self.begin_tokens = 0 if denoiser.config.bos_token_id is None else 1
        self.cache = denoiser.new_cache(end - 1 + self.begin_tokens)
        self.position = torch.zeros((), dtype=torch.int64, device=seeds.device)
        self.token = torch.zeros_like(seeds)[:, None]
        self._captures = isinstance(self.cache, StaticCache) and can_capture(denoiser)
        self._captured: Choice | None = None
        self._captured_reach = 0

    def read_prompt(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read everything before the first position to be written, [B, n]."""
        position = ids.shape[1]
        if self.begin_tokens:
            ids = torch.cat([ids.new_full((len(ids), 1), self.denoiser.config.bos_token_id), ids], dim=1)
        elif position == 0:
            raise UnmaskError("This network has no begin token, so it cannot write the first one: give it a prompt.")
        self._go_to(position, ids.shape[1])
        return self._choose(ids)

    def read_token(self, ids: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Read the tokens [B, 1] before a position. A later reading may overwrite what is returned."""
        self._go_to(position, 1)
        if self._captures and self.cache.reach != self._captured_reach:
            self._capture(position)
        if self._captured is None:
            return self._choose(ids)
        self.token.copy_(ids)
        return self._captured()

    def _capture(self, position: int) -> None:
        """Record the calls that go as far as this one, where enough of them are left."""
        self._captured = None
        self._captured_reach = self.cache.reach
        last = min(self.end - 1, self.cache.reach - self.begin_tokens)
        if last - position + 1 >= WORTH_CAPTURING:
            self._captured = CudaGraph(lambda: self._choose(self.token))

    def _go_to(self, position: int, length: int) -> None:
        """The next `length` tokens to be read are those before a position."""
        self.position.fill_(position)
        if isinstance(self.cache, StaticCache):
            self.cache.seek(position + self.begin_tokens - length, length)

    def _choose(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """One network call, for all rows, so that its shape does not depend on who writes."""
        hidden = self.denoiser.hidden(ids, past_key_values=self.cache)
        logits = self.denoiser.head(hidden[:, -1])
        at = self.position.expand(len(self.seeds))
        late = None if self.late is None else at >= self.late
        return self.rule.choose(logits, self.seeds, self.position, at, is_fused(self.denoiser), late)
