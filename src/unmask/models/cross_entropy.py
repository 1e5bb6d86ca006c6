"""Cross-entropy and other reductions over the vocabulary for selected rows, without storing logits [B, L, V].

Only selected rows go through the head, one chunk at a time. Cross-entropy with a linear head computes its gradients in
the forward pass; any other head or reduction recomputes the logits of a chunk in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

LOGITS_PER_CHUNK = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Logits that `linear_cross_entropy` computes at a time: few enough for a CPU's cache, enough to fill a GPU."""
LOGITS_PER_REDUCTION = 1 << 24
"""Logits that `reduce_rows` computes at a time."""
VOCABULARY_ALIGNMENT = 64
"""On a GPU the vocabulary is padded to a multiple of this: matrix products of odd widths are slow there."""

Head = Callable[[Tensor], Tensor]
Reduce = Callable[[Tensor, Tensor], Tensor]


class Projection(NamedTuple):
    """A linear head: `weight` [V, D] and `bias` [V], -inf for tokens of probability 0.

    `dtype` is that of the matrix products; `fused`: whether the operations between them are compiled.
    """

    weight: Tensor
    bias: Tensor
    dtype: torch.dtype = torch.float32
    fused: bool = False


def weighted_cross_entropy(
    denoiser: Any, hidden_BLD: Tensor, rows_N: Tensor, input_ids: Tensor, weights_N: Tensor
) -> tuple[Tensor, Tensor]:
    """-log x_theta(x) at selected rows of a batch: the weighted sum, which has gradients, and the values [N].

    `rows` are indices into the flattened batch, in order; `input_ids` [B, L] are the clean tokens.
    """
    hidden, targets = hidden_BLD.flatten(0, 1), input_ids.flatten()[rows_N]
    if hasattr(denoiser, "projection"):
        return linear_cross_entropy(hidden, rows_N, denoiser.projection(), targets, weights_N)
    nll = reduce_rows(denoiser.head, hidden[rows_N], targets, cross_entropy, denoiser.config.vocab_size)
    return _weighted_sum(nll, weights_N), nll.detach()


def reduce_rows(head: Head, rows_ND: Tensor, targets_N: Tensor, reduce: Reduce, vocab_size: int) -> Tensor:
    """Apply `reduce(logits_nV in float32, targets_n) -> [n, ...]` to the logits of every row, in chunks."""
    chunk = max(1, LOGITS_PER_REDUCTION // vocab_size)

    def reduce_chunk(rows: Tensor, targets: Tensor) -> Tensor:
        return reduce(head(rows).float(), targets)

    if rows_ND.shape[0] <= chunk:
        return reduce_chunk(rows_ND, targets_N)
    parts = []
    for rows, targets in zip(rows_ND.split(chunk), targets_N.split(chunk), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(reduce_chunk, rows, targets, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(reduce_chunk(rows, targets))
    return torch.cat(parts)


def cross_entropy(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """[N] -log softmax(logits)[target]."""
    return F.cross_entropy(logits_NV, targets_N, reduction="none")


def _weighted_sum(values_N: Tensor, weights_N: Tensor) -> Tensor:
    """Sum of weight * value, where values of weight 0 may be infinite."""
    return (values_N * weights_N).masked_fill(weights_N == 0, 0.0).sum()


# ---- cross-entropy with a linear head -------------------------------------------------------------------------------


def linear_cross_entropy(
    hidden_MD: Tensor, rows_N: Tensor, projection: Projection, targets_N: Tensor, weights_N: Tensor
) -> tuple[Tensor, Tensor]:
    """-log softmax(hidden[rows] W^T + b)[target] in float32: the weighted sum and the values [N].

    Only the sum has gradients. `rows` must be distinct.
    """
    if torch.is_grad_enabled():
        return _LinearCrossEntropy.apply(hidden_MD, rows_N, *projection, targets_N, weights_N)
    nll = _linear_nll(hidden_MD, rows_N, projection, targets_N)
    return _weighted_sum(nll, weights_N), nll


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients of the weighted sum in the forward pass, so that no logits are stored."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        hidden, rows, weight, bias, dtype, fused, targets, weights = inputs
        gradients = _Gradients(hidden, weight, bias)
        nll = _linear_nll(hidden, rows, Projection(weight, bias, dtype, fused), targets, weights, gradients)
        ctx.save_for_backward(gradients.hidden, gradients.weight, gradients.bias)
        ctx.mark_non_differentiable(nll)
        return _weighted_sum(nll, weights), nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = (gradient * upstream.to(gradient.dtype) for gradient in ctx.saved_tensors)
        return hidden, None, weight, bias, None, None, None, None


class _Gradients:
    """Gradients of the weighted sum with respect to hidden states, weight and bias, accumulated chunk by chunk."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor) -> None:
        self.hidden, self.weight, self.bias = (torch.zeros_like(tensor) for tensor in (hidden, weight, bias))

    def add(self, rows: Tensor, chosen: Tensor, table: Tensor, grad_NV: Tensor) -> None:
        """Add a chunk: row indices, hidden states, the weight they were multiplied by, the gradient of the logits."""
        self.hidden[rows] = (grad_NV @ table).to(self.hidden.dtype)
        if self.weight.shape == table.shape and self.weight.dtype == table.dtype:
            torch.addmm(self.weight, grad_NV.T, chosen, out=self.weight)
        else:
            self.weight += (grad_NV.T @ chosen)[: len(self.weight)]
        self.bias += grad_NV.sum(dim=0, dtype=torch.promote_types(self.bias.dtype, torch.float32))[: len(self.bias)]


def _linear_nll(
    hidden: Tensor,
    rows: Tensor,
    projection: Projection,
    targets: Tensor,
    weights: Tensor | None = None,
    gradients: _Gradients | None = None,
) -> Tensor:
    """[N] the cross-entropies of all chunks; their gradients are added to `gradients` if given."""
    table, bias = _pad_vocabulary(projection.weight.to(projection.dtype), projection.bias)
    reduce = _reduce_fused if projection.fused else _reduce
    nll = torch.empty(rows.shape, dtype=bias.dtype, device=rows.device)
    chunk = max(1, LOGITS_PER_CHUNK.get(table.device.type, 1 << 24) // table.shape[0])
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        chosen = hidden[rows[part]].to(table.dtype)
        if gradients is None and chosen.is_cuda and chosen.dtype != torch.float32:
            logits = torch.mm(chosen, table.T, out_dtype=torch.float32)  # keep the precision of the accumulator
        else:
            logits = chosen @ table.T
        nll[part], grad = reduce(logits, bias, targets[part], None if weights is None else weights[part])
        if gradients is not None and grad is not None:
            gradients.add(rows[part], chosen, table, grad)
    return nll


def _pad_vocabulary(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias (in float32 or finer), padded on a GPU with tokens of probability 0."""
    missing = -weight.shape[0] % VOCABULARY_ALIGNMENT if weight.is_cuda else 0
    bias = bias.to(torch.promote_types(bias.dtype, torch.float32))
    if not missing:
        return weight, bias
    return F.pad(weight, (0, 0, 0, missing)), F.pad(bias, (0, missing), value=-math.inf)


def _reduce(logits_NV: Tensor, bias_V: Tensor, targets_N: Tensor, up_N: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """[N] the cross-entropies of a chunk, overwriting its logits; and [N, V] their gradients times `up`, if given."""
    shifted = logits_NV.to(bias_V.dtype).add_(bias_V)
    log_norm, nll = _log_norm_and_nll(shifted, targets_N)
    if up_N is None:
        return nll, None
    p = shifted.sub_(log_norm[:, None]).exp_()
    p[torch.arange(len(p), device=p.device), targets_N] -= 1.0
    return nll, p.mul_(up_N[:, None]).to(logits_NV.dtype)


def _reduce_fused(
    logits_NV: Tensor, bias_V: Tensor, targets_N: Tensor, up_N: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """`_reduce` as one compiled kernel for any number of rows, which writes nothing but its results."""
    reduction, reduction_and_gradient = _compiled_kernels()
    for tensor in (logits_NV, targets_N) if up_N is None else (logits_NV, targets_N, up_N):
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    if up_N is None:
        return reduction(logits_NV, bias_V, targets_N), None
    return reduction_and_gradient(logits_NV, bias_V, targets_N, up_N)


@lru_cache
def _compiled_kernels() -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, Tensor]]]:
    return torch.compile(_reduction), torch.compile(_reduction_and_gradient)


def _reduction(logits_NV: Tensor, bias_V: Tensor, targets_N: Tensor) -> Tensor:
    """[N] the cross-entropies of logits before the bias, in the dtype of the bias."""
    return _log_norm_and_nll(logits_NV.to(bias_V.dtype) + bias_V, targets_N)[1]


def _reduction_and_gradient(
    logits_NV: Tensor, bias_V: Tensor, targets_N: Tensor, up_N: Tensor
) -> tuple[Tensor, Tensor]:
    """`_reduction`, and [N, V] (softmax - onehot(target)) * up in the dtype of the logits."""
    shifted = logits_NV.to(bias_V.dtype) + bias_V
    log_norm, nll = _log_norm_and_nll(shifted, targets_N)
    p = torch.exp(shifted - log_norm[:, None])
    tokens = torch.arange(logits_NV.shape[1], dtype=torch.int32, device=logits_NV.device)
    at_target = tokens == targets_N[:, None].to(torch.int32)
    return nll, (torch.where(at_target, p - 1.0, p) * up_N[:, None]).to(logits_NV.dtype)


def _log_norm_and_nll(shifted_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """[N] log sum_y e^logit, and [N] that minus the logit of the target."""
    log_norm = shifted_NV.logsumexp(dim=-1)
    return log_norm, log_norm - shifted_NV.gather(1, targets_N[:, None])[:, 0]
