"""Drawing a token from a row of logits: temperature, top-k, top-p and min-p, then an exact draw or the argmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from unmask.random import Purpose, exponential
from unmask.registry import Component

ENTRIES_PER_CHUNK = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Logits to draw from at a time: enough to fill a GPU, few enough for the cache of a CPU."""
LOGITS_PER_CHUNK = {"cpu": 1 << 22, "cuda": 1 << 24}
"""Logits that the head computes at a time: many, so that they share one read of its matrix, within bounded memory."""


class TokenSampler(Component):
    """The distribution a token is drawn from: temperature, then top-k, top-p and min-p, in this order.

    With `temperature=0` the most likely token is taken. The last calls of a sequence, a share of `greedy_tail`, take it
    too, and so do positions where its probability is above `greedy_above`.
    """

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    """The smallest probability of a token, relative to that of the most likely token."""
    greedy_tail: float | None = Field(default=None, ge=0, le=1)
    greedy_above: float | None = Field(default=None, ge=0, le=1)

    def sample(
        self,
        logits_NV: Tensor,
        seeds_N: Tensor,
        step: int | Tensor,
        positions_N: Tensor,
        fused: bool = False,
        greedy_N: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw tokens [N]; also returns their probabilities [N] under the unmodified logits, the confidences.

        The draw of a row depends only on the seed of its sequence, the step (one for all, or [N]) and the position.
        `fused` uses compiled kernels. `greedy_N` marks rows in the greedy tail of their sequence.
        """
        if fused and self == TokenSampler():
            return _sample_fused(logits_NV, seeds_N, step, positions_N)
        log_p = logits_NV.float().log_softmax(-1)
        if self.temperature == 0:
            tokens = log_p.argmax(-1)
        else:
            size, parts = rows_per_chunk(log_p.device, log_p.shape[-1]), []
            for start in range(0, len(log_p), size):
                rows = slice(start, start + size)
                log_w = self.truncate(log_p[rows], None if greedy_N is None else greedy_N[rows])
                steps = step[rows] if isinstance(step, Tensor) and step.ndim else step
                parts.append(sample_tokens(log_w, seeds_N[rows], steps, positions_N[rows]))
            tokens = torch.cat(parts) if parts else log_p.new_zeros(0, dtype=torch.int64)
        return tokens, log_p.gather(1, tokens[:, None])[:, 0].exp()

    def sample_from_hidden(
        self,
        denoiser: Any,
        hidden_ND: Tensor,
        seeds_N: Tensor,
        step: int | Tensor,
        positions_N: Tensor,
        greedy_N: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """`sample` from hidden states, chunk by chunk, so that the logits of a whole canvas are never in memory."""
        fused = getattr(denoiser, "fused", False)
        size = max(1, LOGITS_PER_CHUNK.get(hidden_ND.device.type, 1 << 22) // denoiser.config.vocab_size)
        count = -(-len(hidden_ND) // size)
        if count <= 1:
            return self.sample(denoiser.head(hidden_ND), seeds_N, step, positions_N, fused, greedy_N)
        greedy = [None] * count if greedy_N is None else greedy_N.tensor_split(count)
        steps = step.tensor_split(count) if isinstance(step, Tensor) and step.ndim else [step] * count
        chunks = zip(*(x.tensor_split(count) for x in (hidden_ND, seeds_N, positions_N)), steps, greedy, strict=True)
        parts = [self.sample(denoiser.head(h), seeds, one, at, fused, g) for h, seeds, at, one, g in chunks]
        tokens, confidence = zip(*parts, strict=True)
        return torch.cat(tokens), torch.cat(confidence)

    def greedy_from(self, calls: Tensor) -> Tensor | None:
        """[B] the first call of the greedy tail of sequences that make `calls` [B] calls; None without a tail."""
        if self.greedy_tail is None:
            return None
        return calls - (self.greedy_tail * calls.double() + 1e-9).floor().long()  # 0.29 * 100 is below 29

    def truncate(self, log_p: Tensor, greedy: Tensor | None = None) -> Tensor:
        """Log-weights [N, V] after temperature and truncation, -inf for tokens that are cut off.

        Only the most likely token is left in rows that are `greedy` [N] or in which it is above `greedy_above`.
        """
        log_w = log_p if self.temperature == 1.0 else log_p / self.temperature
        if self.top_k is not None and self.top_k < log_w.shape[-1]:
            kth = log_w.topk(self.top_k, dim=-1).values[:, -1:]
            log_w = log_w.where(log_w >= kth, -torch.inf)
        if self.top_p is not None and self.top_p < 1.0:
            log_w = _nucleus(log_w, self.top_p)
        if self.min_p:
            log_w = log_w.where(log_w >= log_w.amax(dim=-1, keepdim=True) + math.log(self.min_p), -torch.inf)
        if self.greedy_above is not None:
            confident = log_p.amax(dim=-1).exp() > self.greedy_above
            greedy = confident if greedy is None else confident | greedy
        if greedy is None:
            return log_w
        top = torch.full_like(log_w, -torch.inf).scatter(1, log_p.argmax(dim=-1, keepdim=True), 0.0)
        return torch.where(greedy[:, None], top, log_w)


def _nucleus(log_w: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most likely tokens with a mass of at least `top_p`."""
    ordered, index = log_w.log_softmax(-1).sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    cut = torch.zeros_like(log_w, dtype=torch.bool).scatter(1, index, before >= top_p)
    return log_w.masked_fill(cut, -torch.inf)


def rows_per_chunk(device: torch.device, vocab_size: int) -> int:
    """The number of rows of logits to work on at a time."""
    return max(1, ENTRIES_PER_CHUNK.get(device.type, 1 << 22) // vocab_size)


def sample_tokens(log_w_NV: Tensor, seeds_N: Tensor, step: int | Tensor, positions_N: Tensor) -> Tensor:
    """[N] exact categorical draws from unnormalised log-weights: y = argmin E_y / w_y with exponential E.

    E keeps its relative precision near 0, so tokens of tiny probability are drawn at the right rate in float32; the
    Gumbel draw -log(-log(u)) cuts that tail off.
    """
    token = torch.arange(log_w_NV.shape[-1], device=log_w_NV.device)
    step = step[:, None] if isinstance(step, Tensor) and step.ndim else step
    noise = exponential(seeds_N[:, None], Purpose.TOKEN, step, positions_N[:, None], token[None])
    return (log_w_NV - noise.log()).argmax(-1)


def _sample_fused(logits_NV: Tensor, seeds_N: Tensor, step: int | Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
    """`TokenSampler().sample` by compiled kernels, which serve any number of rows and any step."""
    step = torch.as_tensor(step).to(logits_NV.device, non_blocking=True)
    for tensor in (logits_NV, seeds_N, positions_N, *([step] if step.ndim else [])):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return _compiled_sample()(logits_NV, seeds_N, step, positions_N)


def _sample(logits_NV: Tensor, seeds_N: Tensor, step: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits_NV.float().log_softmax(-1)
    tokens = sample_tokens(log_p, seeds_N, step, positions_N)
    return tokens, log_p.gather(1, tokens[:, None])[:, 0].exp()


@lru_cache
def _compiled_sample() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_sample)
