"""Left-to-right sampling from an autoregressive model with a key-value cache."""

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
from unmask.samplers.base import AnyTokenSampler, Canvas, Positions, Sampler, State
from unmask.samplers.token_sampling import TokenSampler

MIN_CALLS_TO_CAPTURE = 16
"""From this many remaining calls of one shape a CUDA graph saves more time than its capture takes."""


@dataclass
class AutoregressivePlan:
    """Call i writes position `first + i` of the sequences `rows[i]`."""

    first: int
    rows: tuple[Tensor, ...]
    decoder: CachedDecoder | None = None


class AutoregressiveSampler(Sampler):
    """One token per call. Given tokens are read and kept; prompts in a batch may differ in length."""

    name: Literal["ar"] = "ar"
    causal: ClassVar[bool] = True

    def begin(self, canvas: Canvas) -> State:
        device = canvas.ids.device
        masked = np.array(canvas.masked.tolist()).reshape(canvas.ids.shape)
        columns = np.flatnonzero(masked.any(axis=0))
        first, total = (int(columns[0]), int(columns[-1] - columns[0] + 1)) if len(columns) else (0, 0)
        by_call = masked[:, first : first + total].T
        rows = torch.as_tensor(np.nonzero(by_call)[1], device=device).split(by_call.sum(axis=1).tolist())
        # the calls of a sequence are those from its first mask to its last one
        has_masks, start = masked.any(axis=1), masked.argmax(axis=1)
        stop = masked.shape[1] - masked[:, ::-1].argmax(axis=1)
        calls, idle = (stop - start) * has_masks, (start - first) * has_masks
        plan = AutoregressivePlan(first, rows)
        state = State.start(canvas, torch.as_tensor(calls, device=device), total, plan)
        return replace(state, idle_calls=torch.as_tensor(idle, device=device)) if idle.any() else state

    def step(self, denoiser: Any, state: State, token_sampler: AnyTokenSampler) -> State:
        assert isinstance(token_sampler, TokenSampler)
        plan: AutoregressivePlan = state.plan
        position = plan.first + state.call
        if plan.decoder is None:
            greedy_from = token_sampler.greedy_from(state.calls)
            if greedy_from is not None:
                greedy_from = greedy_from + state.canvas.masked.long().argmax(dim=1)
            end = plan.first + state.total
            plan.decoder = CachedDecoder(denoiser, token_sampler, state.canvas.seeds, end, greedy_from)
            tokens, confidence = plan.decoder.prefill(state.ids[:, :position])
        else:
            tokens, confidence = plan.decoder.decode(state.ids[:, position - 1 : position], position)
        rows = plan.rows[state.call]
        return state.write(Positions(rows, torch.full_like(rows, position)), tokens[rows], confidence[rows])


class CachedDecoder:
    """Draws token after token for the sequences of a canvas, up to position `end`.

    `greedy_from` [B] is the position at which the greedy tail of each sequence begins. Everything that `_sample` reads
    and that changes from call to call is in tensors with fixed addresses, so on a GPU it is captured as one CUDA graph
    per length of the cache.
    """

    def __init__(
        self,
        denoiser: Any,
        token_sampler: TokenSampler,
        seeds: Tensor,
        end: int,
        greedy_from: Tensor | None,
    ) -> None:
        self.denoiser = denoiser
        self.token_sampler = token_sampler
        self.seeds = seeds
        self.end = end
        self.greedy_from = greedy_from
        self.bos_tokens = 0 if denoiser.config.bos_token_id is None else 1
        self.cache = denoiser.new_cache(end - 1 + self.bos_tokens)
        self.position = torch.zeros((), dtype=torch.int64, device=seeds.device)
        self.token = torch.zeros_like(seeds)[:, None]
        self._can_capture = isinstance(self.cache, StaticCache) and can_capture(denoiser)
        self._graph: Callable[[], tuple[Tensor, Tensor]] | None = None
        self._graph_reach = 0

    def prefill(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read the prompts [B, n] and draw tokens and confidences [B] for position n."""
        position = ids.shape[1]
        if self.bos_tokens:
            ids = torch.cat([ids.new_full((len(ids), 1), self.denoiser.config.bos_token_id), ids], dim=1)
        elif position == 0:
            raise UnmaskError("This model has no BOS token and cannot write the first token; give a prompt.")
        self._seek(position, ids.shape[1])
        return self._sample(ids)

    def decode(self, ids: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Read the tokens [B, 1] before a position and draw for it. A later call may overwrite the result."""
        self._seek(position, 1)
        if self._can_capture and self.cache.reach != self._graph_reach:
            self._graph, self._graph_reach = None, self.cache.reach
            last = min(self.end - 1, self.cache.reach - self.bos_tokens)
            if last - position + 1 >= MIN_CALLS_TO_CAPTURE:
                self._graph = CudaGraph(lambda: self._sample(self.token))
        if self._graph is None:
            return self._sample(ids)
        self.token.copy_(ids)
        return self._graph()

    def _seek(self, position: int, length: int) -> None:
        """Prepare to read the `length` tokens before a position."""
        self.position.fill_(position)
        if isinstance(self.cache, StaticCache):
            self.cache.seek(position + self.bos_tokens - length, length)

    def _sample(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Make one network call for all sequences, finished ones included, so that shapes stay the same."""
        hidden = self.denoiser.hidden(ids, past_key_values=self.cache)
        logits = self.denoiser.head(hidden[:, -1])
        at = self.position.expand(len(self.seeds))
        greedy = None if self.greedy_from is None else at >= self.greedy_from
        fused = getattr(self.denoiser, "fused", False)
        return self.token_sampler.sample(logits, self.seeds, self.position, at, fused, greedy)
