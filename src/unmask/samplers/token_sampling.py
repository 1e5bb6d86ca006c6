"""How a token is chosen from a row of logits: temperature, top-k, top-p, min-p, then an exact draw or the argmax."""

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
"""Logits drawn from at a time: what a CPU's cache holds, what fills a GPU."""
LOGITS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 24}
"""Logits that a head makes at a time: so many that the reading of its matrix is shared by many rows, and no more."""
COLDEST, HOTTEST = 1e-30, 1e30
"""Temperatures beyond these are taken for them: float32 knows no other law there, and divides by nothing finer."""
HAIR = 1e-9
"""So that a tenth of ten calls is one, though 0.1 is not quite a tenth."""


class TokenSampler(Component):
    """The distribution a token is drawn from: temperature first, then top-k, top-p and min-p cut, in this order.

    `temperature=0` takes the most likely token. A hybrid rule does so in the last `greedy_tail` of the calls of a
    sequence, or where the most likely token has a probability above `greedy_above`.
    """

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    """The smallest share of the most likely token's weight that a token may have."""
    greedy_tail: float | None = Field(default=None, ge=0, le=1)
    greedy_above: float | None = Field(default=None, ge=0, le=1)

    def choose(
        self,
        logits_NV: Tensor,
        seeds_N: Tensor,
        step: int | Tensor,
        positions_N: Tensor,
        fused: bool = False,
        late_N: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Tokens [N] and the probability [N] the untouched prediction gave each: its confidence.

        The draw of a row depends on its sequence's seed, the step and its position alone. `fused`: by kernels that a
        compiler makes, where these draws are many. `late_N`: the rows of sequences that are in their greedy tail.
        """
        if fused and self == TokenSampler():
            return _choose_fused(logits_NV, seeds_N, step, positions_N)
        log_p = logits_NV.float().log_softmax(-1)
        tokens = log_p.argmax(-1) if self.temperature == 0 else self._draw(log_p, seeds_N, step, positions_N, late_N)
        return tokens, log_p.gather(1, tokens[:, None])[:, 0].exp()

    def choose_from(
        self,
        denoiser: Any,
        hidden_ND: Tensor,
        seeds_N: Tensor,
        step: int | Tensor,
        positions_N: Tensor,
        late_N: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`choose` from hidden rows, some of which go through the head at a time: no logits of a canvas are held."""
        fused = is_fused(denoiser)

        def chosen(hidden: Tensor, seeds: Tensor, positions: Tensor, late: Tensor | None) -> tuple[Tensor, Tensor]:
            return self.choose(denoiser.head(hidden), seeds, step, positions, fused, late)

        size = max(1, LOGITS_AT_ONCE.get(hidden_ND.device.type, 1 << 22) // denoiser.config.vocab_size)
        count = -(-len(hidden_ND) // size)
        if count <= 1:
            return chosen(hidden_ND, seeds_N, positions_N, late_N)
        late = [None] * count if late_N is None else late_N.tensor_split(count)
        parts = zip(*(x.tensor_split(count) for x in (hidden_ND, seeds_N, positions_N)), late, strict=True)
        tokens, confidence = zip(*(chosen(*part) for part in parts), strict=True)
        return torch.cat(tokens), torch.cat(confidence)

    def late_from(self, calls: Tensor) -> Tensor | None:
        """[B] the first call of the greedy tail of sequences that make so many calls [B]; None without a tail."""
        if self.greedy_tail is None:
            return None
        return calls - (self.greedy_tail * calls.double() + HAIR).floor().long()

    def truncate(self, log_p: Tensor, late: Tensor | None = None) -> Tensor:
        """Log-weights [N, V] after temperature and all cuts, the most likely token alone where it is taken for sure.

        What is cut is -inf. `late` [N]: the rows of sequences that are in their greedy tail.
        """
        log_w = self._cut(log_p)
        sure = None if self.greedy_above is None else log_p.amax(dim=-1).exp() > self.greedy_above
        greedy = late if sure is None else sure if late is None else sure | late
        if greedy is None:
            return log_w
        top = torch.full_like(log_w, -torch.inf).scatter(1, log_p.argmax(dim=-1, keepdim=True), 0.0)
        return torch.where(greedy[:, None], top, log_w)

    def _cut(self, log_p: Tensor) -> Tensor:
        log_w = log_p if self.temperature == 1.0 else log_p / min(max(self.temperature, COLDEST), HOTTEST)
        if self.top_k is not None and self.top_k < log_w.shape[-1]:
            kth = log_w.topk(self.top_k, dim=-1).values[:, -1:]
            log_w = log_w.where(log_w >= kth, -torch.inf)
        if self.top_p is not None and self.top_p < 1.0:
            log_w = _nucleus(log_w, self.top_p)
        if self.min_p:
            log_w = log_w.where(log_w >= log_w.amax(dim=-1, keepdim=True) + math.log(self.min_p), -torch.inf)
        return log_w

    def _draw(
        self, log_p: Tensor, seeds_N: Tensor, step: int | Tensor, positions_N: Tensor, late_N: Tensor | None
    ) -> Tensor:
        size = rows_at_once(log_p.device, log_p.shape[-1])
        parts = []
        for rows in (slice(i, i + size) for i in range(0, log_p.shape[0], size)):
            log_w = self.truncate(log_p[rows], None if late_N is None else late_N[rows])
            parts.append(sample_tokens(log_w, seeds_N[rows], step, positions_N[rows]))
        return torch.cat(parts) if parts else log_p.new_zeros(0, dtype=torch.int64)


def rows_at_once(device: torch.device, vocab_size: int) -> int:
    """How many rows of logits are drawn from at a time."""
    return max(1, ENTRIES_PER_CHUNK.get(device.type, 1 << 22) // vocab_size)


def sample_tokens(log_w_NV: Tensor, seeds_N: Tensor, step: int | Tensor, positions_N: Tensor) -> Tensor:
    """[N] exact categorical draws from unnormalised log-weights: y = argmin E_y / w_y with exponential E.

    E keeps its relative precision near 0, so float32 gives tokens of tiny probability their due and no more; a Gumbel
    draw -log(-log(u)) in float32 cuts that tail.
    """
    token = torch.arange(log_w_NV.shape[-1], device=log_w_NV.device)
    noise = exponential(seeds_N[:, None], Purpose.TOKEN, step, positions_N[:, None], token[None])
    return (log_w_NV - noise.log()).argmax(-1)


def _nucleus(log_w: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of most likely tokens whose mass reaches `top_p`."""
    ordered, index = log_w.log_softmax(-1).sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    cut = torch.zeros_like(log_w, dtype=torch.bool).scatter(1, index, before >= top_p)
    return log_w.masked_fill(cut, -torch.inf)


def is_fused(denoiser: Any) -> bool:
    """Whether a denoiser is one whose work is compiled."""
    return getattr(denoiser, "fused", False)


def _choose_fused(logits_NV: Tensor, seeds_N: Tensor, step: int | Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
    """`TokenRule().choose` in compiled kernels, one set for any number of rows and any step."""
    at = torch.as_tensor(step).to(logits_NV.device, non_blocking=True)
    for tensor in (logits_NV, seeds_N, positions_N):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    return _compiled_choice()(logits_NV, seeds_N, at, positions_N)


def _choose(logits_NV: Tensor, seeds_N: Tensor, step: Tensor, positions_N: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits_NV.float().log_softmax(-1)
    tokens = sample_tokens(log_p, seeds_N, step, positions_N)
    return tokens, log_p.gather(1, tokens[:, None])[:, 0].exp()


@lru_cache
def _compiled_choice() -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(_choose)
