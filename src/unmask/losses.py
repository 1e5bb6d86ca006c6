"""What the vocabulary projection is reduced to, row by row, without ever holding [B, L, V].

Only chosen rows go through the head, a chunk at a time. Cross-entropy under a plain projection has a function of its
own; any other head or reduction recomputes a chunk's logits in the backward pass instead of keeping them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unmask.linear_cross_entropy import linear_cross_entropy, weighted_sum

LOGITS_PER_CHUNK = 1 << 24

Head = Callable[[Tensor], Tensor]
Reduce = Callable[[Tensor, Tensor], Tensor]


def weighted_cross_entropy(
    denoiser: Any, hidden_BLD: Tensor, rows_N: Tensor, input_ids: Tensor, weights_N: Tensor
) -> tuple[Tensor, Tensor]:
    """-log x_theta(x) at chosen rows of a batch: its weighted sum, through which gradients flow, and [N] it itself.

    `rows` are places in the flattened batch, in order; `input_ids` [B, L] the clean tokens.
    """
    hidden, targets = hidden_BLD.flatten(0, 1), input_ids.flatten()[rows_N]
    if hasattr(denoiser, "projection"):
        return linear_cross_entropy(hidden, rows_N, denoiser.projection(), targets, weights_N)
    nll = reduce_rows(denoiser.head, hidden[rows_N], targets, cross_entropy, denoiser.config.vocab_size)
    return weighted_sum(nll, weights_N), nll.detach()


def reduce_rows(head: Head, rows_ND: Tensor, targets_N: Tensor, reduce: Reduce, vocab_size: int) -> Tensor:
    """Apply `reduce(logits_nV in float32, targets_n) -> [n, ...]` to the logits of every row, in chunks."""
    chunk = max(1, LOGITS_PER_CHUNK // vocab_size)

    def one(rows: Tensor, targets: Tensor) -> Tensor:
        return reduce(head(rows).float(), targets)

    if rows_ND.shape[0] <= chunk:
        return one(rows_ND, targets_N)
    parts = []
    for rows, targets in zip(rows_ND.split(chunk), targets_N.split(chunk), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(one, rows, targets, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(one(rows, targets))
    return torch.cat(parts)


def cross_entropy(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """[N] -log softmax(logits)[target]."""
    return F.cross_entropy(logits_NV, targets_N, reduction="none")


def scatter_rows(values_N: Tensor, rows_N: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of this shape with the values at the chosen places of its flattened form, and zeros elsewhere."""
    out = torch.zeros(shape.numel(), dtype=values_N.dtype, device=values_N.device)
    return out.scatter(0, rows_N, values_N).view(shape)
