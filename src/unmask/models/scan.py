"""The selective scan of Mamba (arXiv 2312.00752): a linear recurrence whose coefficients depend on the tokens.

    h_l = exp(dt_l A) h_{l-1} + dt_l x_l B_l,    y_l = C_l h_l

for every channel, with a state h of N numbers. The sequence is cut into chunks of `CHUNK` tokens, and the loop over the
tokens of a chunk runs for all chunks at once: it has as many steps as a chunk has tokens, however long the sequence is.
A first loop finds how each chunk changes the state, a parallel scan over the chunks finds the state in which each of
them begins, and a second loop computes the outputs. All exponents are sums of dt A < 0, so nothing overflows.

Neither pass stores the states [B, L, N, D]. The backward pass recomputes them from the beginnings of the chunks, a few
chunks at a time, so memory grows with the length as the inputs do. On a GPU the loops are the Triton kernels of
`scan_triton`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from unmask.models.inference import has_triton

CHUNK = 32
GPU_CHUNK = 64
STATES_IN_BACKWARD = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Numbers in the states that the backward pass holds at a time."""


@torch.compiler.disable
def selective_scan(
    x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The outputs y [B, L, D] and the last state [B, N, D], in float32 or finer.

    Args:
        x: Inputs, [B, L, D].
        dt: Step sizes, positive, [B, L, D].
        decay: A, negative, [N, D].
        b: Input coefficients, [B, L, N].
        c: Output coefficients, [B, L, N].
        state: The state before the first token, [B, N, D]; zero if None.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    x, dt, decay, b, c = (tensor.to(dtype) for tensor in (x, dt, decay, b, c))
    if state is None:
        state = x.new_zeros(x.shape[0], *decay.shape)
    return _SelectiveScan.apply(x, dt, decay, b, c, state.to(dtype))


class _SelectiveScan(torch.autograd.Function):
    """The scan on inputs of one dtype. It saves its inputs and the states in which the chunks begin."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, decay, b, c, state = inputs
        length = x.shape[1]
        chunk = min(GPU_CHUNK if x.is_cuda else CHUNK, length)
        x, dt, b, c = (_split(tensor, chunk) for tensor in (x, dt, b, c))
        loops = _loops(x)
        starts = state[:, None]
        if x.shape[1] > 1:
            ends = _carry(_chunk_factors(dt, decay), loops.chunk_ends(x, dt, decay, b), state)
            starts = torch.cat([starts, ends[:, :-1]], dim=1)
        outputs, ends = loops.chunk_outputs(x, dt, decay, b, c, starts)
        ctx.save_for_backward(x, dt, decay, b, c, starts)
        ctx.length = length
        return outputs.flatten(1, 2)[:, :length], ends[:, -1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, dt, decay, b, c, starts = ctx.saved_tensors
        grad_y, grad_last = _split(gradients[0], x.shape[2]), gradients[1]
        loops = _loops(x)
        own = loops.chunk_start_gradients(dt, decay, c, grad_y)
        grad_starts = _carry(_chunk_factors(dt, decay).flip(1), own.flip(1), grad_last).flip(1)
        grad_ends = torch.cat([grad_starts[:, 1:], grad_last[:, None]], dim=1)
        numbers = x.shape[0] * x.shape[2] * decay.numel()
        size = max(1, STATES_IN_BACKWARD.get(x.device.type, 1 << 22) // numbers)
        grad_decay = torch.zeros_like(decay)
        parts = []
        for first in range(0, x.shape[1], size):
            here = slice(first, first + size)
            *grads, grad = loops.chunk_gradients(
                *(tensor[:, here] for tensor in (x, dt, b, c, starts, grad_y, grad_ends)), decay
            )
            grad_decay += grad
            parts.append(grads)
        joined = [torch.cat(part, dim=1).flatten(1, 2)[:, : ctx.length] for part in zip(*parts, strict=True)]
        return joined[0], joined[1], grad_decay, joined[2], joined[3], grad_starts[:, 0]


def _split(tensor: Tensor, chunk: int) -> Tensor:
    """[B, L, ...] as chunks [B, n, chunk, ...]. Zeros behind the end: with dt = 0 they do not change the state."""
    missing = -tensor.shape[1] % chunk
    padded = F.pad(tensor, (0, 0, 0, missing)) if missing else tensor
    return padded.unflatten(1, (-1, chunk)).contiguous()


def _loops(x: Tensor) -> Any:
    """The module with the loops over the tokens of a chunk: `scan_triton` for float32 on a GPU, else this one."""
    kernels = x.is_cuda and x.dtype == torch.float32 and has_triton()
    return import_module("unmask.models.scan_triton" if kernels else __name__)


def _chunk_factors(dt: Tensor, decay: Tensor) -> Tensor:
    """[B, n, N, D] by how much a state decays in each chunk."""
    return torch.exp(dt.sum(dim=2)[:, :, None] * decay)


def _carry(factors: Tensor, values: Tensor, state: Tensor) -> Tensor:
    """h_i = factor_i h_{i-1} + value_i along dimension 1, from h = state, in log2(n) steps."""
    first = torch.addcmul(values[:, :1], factors[:, :1], state[:, None])
    values = torch.cat([first, values[:, 1:]], dim=1)
    distance = 1
    while distance < values.shape[1]:
        later = torch.addcmul(values[:, distance:], factors[:, distance:], values[:, :-distance])
        values = torch.cat([values[:, :distance], later], dim=1)
        factors = torch.cat([factors[:, :distance], factors[:, distance:] * factors[:, :-distance]], dim=1)
        distance *= 2
    return values


# The functions below take chunks [B, n, Q, ...]. States are [B, n, N, D], one for each chunk.


def chunk_ends(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor) -> Tensor:
    """The states in which the chunks end if they begin with zero."""
    dt, b = dt[:, :, :, None], b[..., None]
    inputs = dt * x[:, :, :, None]
    h = inputs[:, :, 0] * b[:, :, 0]
    for q in range(1, x.shape[2]):
        h = torch.addcmul(torch.exp(dt[:, :, q] * decay) * h, inputs[:, :, q], b[:, :, q])
    return h


def chunk_outputs(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, n, Q, D] of chunks that begin with the states `starts`, and the states in which they end."""
    dt, b, c = dt[:, :, :, None], b[..., None], c[..., None]
    inputs = dt * x[:, :, :, None]
    h, outputs = starts, []
    for q in range(x.shape[2]):
        h = torch.addcmul(torch.exp(dt[:, :, q] * decay) * h, inputs[:, :, q], b[:, :, q])
        outputs.append((h * c[:, :, q]).sum(dim=2))
    return torch.stack(outputs, dim=2), h


def chunk_start_gradients(dt: Tensor, decay: Tensor, c: Tensor, grad_y: Tensor) -> Tensor:
    """The gradients of the states in which the chunks begin, from the outputs of their own chunk."""
    dt, c, grad_y = dt[:, :, :, None], c[..., None], grad_y[:, :, :, None]
    g = torch.zeros_like(c[:, :, 0] * grad_y[:, :, 0])
    for q in reversed(range(dt.shape[2])):
        g = torch.exp(dt[:, :, q] * decay) * torch.addcmul(g, c[:, :, q], grad_y[:, :, q])
    return g


def chunk_gradients(
    x: Tensor,
    dt: Tensor,
    b: Tensor,
    c: Tensor,
    starts: Tensor,
    grad_y: Tensor,
    grad_ends: Tensor,
    decay: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of x, dt, b, c, all [B, n, Q, ...], and of the decay [N, D]."""
    step_sizes, tokens, b, c = dt[:, :, :, None], x[:, :, :, None], b[..., None], c[..., None]
    grad_y = grad_y[:, :, :, None]
    steps = range(x.shape[2])
    factors = [torch.exp(step_sizes[:, :, q] * decay) for q in steps]
    states = [starts]
    for q in steps:
        states.append(torch.addcmul(factors[q] * states[-1], step_sizes[:, :, q] * tokens[:, :, q], b[:, :, q]))
    g, grad_decay = grad_ends, torch.zeros_like(starts)
    grads: dict[str, list[Tensor]] = {name: [] for name in ("x", "dt", "b", "c")}
    for q in reversed(steps):
        size, token = step_sizes[:, :, q], tokens[:, :, q]
        g = torch.addcmul(g, c[:, :, q], grad_y[:, :, q])  # of the state after token q
        grads["c"].append((states[q + 1] * grad_y[:, :, q]).sum(dim=3))
        grads["b"].append((g * (size * token)).sum(dim=3))
        grad_input = (g * b[:, :, q]).sum(dim=2)
        grads["x"].append(grad_input * size[:, :, 0])
        g = factors[q] * g  # of the state before token q
        grad_exponent = g * states[q]
        grads["dt"].append(torch.addcmul((grad_exponent * decay).sum(dim=2), grad_input, token[:, :, 0]))
        grad_decay = torch.addcmul(grad_decay, grad_exponent, size)
    stacked = (torch.stack(grads[name][::-1], dim=2) for name in ("x", "dt", "b", "c"))
    return (*stacked, grad_decay.sum(dim=(0, 1)))
