"""What the vocabulary projection is reduced to, row by row, without ever holding [B, L, V].

Only selected rows go through the head, a chunk at a time; in training a chunk's logits are recomputed in the backward
pass instead of being kept, so memory is one chunk whatever the batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS_PER_CHUNK = 1 << 24

Head = Callable[[Tensor], Tensor]
Reduce = Callable[[Tensor, Tensor], Tensor]


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


def scatter_rows(values_N: Tensor, selected_BL: Tensor) -> Tensor:
    """[B, L] with the values at the selected positions, in their order, and zeros elsewhere."""
    out = torch.zeros(selected_BL.shape, dtype=values_N.dtype, device=values_N.device)
    return out.masked_scatter(selected_BL, values_N)
