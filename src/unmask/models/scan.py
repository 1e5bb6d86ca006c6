"""The selective scan of Mamba (arXiv 2312.00752): a linear recurrence whose coefficients depend on the tokens.

    h_l = exp(dt_l A) h_{l-1} + dt_l x_l B_l,    y_l = C_l h_l

for every channel, with a state h of N numbers. The sequence is cut into chunks of `CHUNK` tokens, and the loop over the
tokens of a chunk runs for all chunks at once: it has as many steps as a chunk has tokens, however long the sequence is.
A first loop finds how each chunk changes the state, a parallel scan over the chunks finds the state in which each of
them begins, and a second loop computes the outputs. All exponents are sums of dt A < 0, so nothing overflows.

Neither pass stores the states [B, L, N, D]. The backward pass recomputes them from the beginnings of the chunks, a few
chunks at a time, so memory grows with the length as the inputs do. On a GPU the Triton kernels of `scan_triton` take
the place of the loops.
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
KERNEL_CHUNK = 16
"""Tokens of a chunk on a GPU, and the length below which the loops are used there too, as in a step of generation."""
STATES_IN_BACKWARD = 1 << 22
"""Numbers in the states that the loops of the backward pass hold at a time."""


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
    if state is None:
        state = x.new_zeros(x.shape[0], *decay.shape)
    inputs = [tensor.to(dtype).contiguous() for tensor in (x, dt, decay, b, c, state)]
    return _scan(*inputs)


@torch.compiler.disable
def _scan(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The scan of inputs of one dtype, without the conversions, which are compiled with the block."""
    return _SelectiveScan.apply(*inputs)


class _SelectiveScan(torch.autograd.Function):
    """The scan on inputs of one dtype. It saves its inputs and the states in which the chunks begin."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        x, dt, decay, b, c, state = inputs
        length, kernels = x.shape[1], _has_kernels(x)
        scan, chunk = _implementation(kernels), KERNEL_CHUNK if kernels else min(CHUNK, length)
        x, dt, b, c = (_split(tensor, chunk) for tensor in (x, dt, b, c))
        starts, last = scan.carry(dt, decay, scan.chunk_ends(x, dt, decay, b), state)
        outputs = scan.chunk_outputs(x, dt, decay, b, c, starts)
        ctx.save_for_backward(x, dt, decay, b, c, starts)
        ctx.length, ctx.kernels = length, kernels
        return outputs.flatten(1, 2)[:, :length], last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, dt, decay, b, c, starts = ctx.saved_tensors
        scan = _implementation(ctx.kernels)
        grad_y, grad_last = _split(gradients[0], x.shape[2]), gradients[1]
        own = scan.chunk_start_gradients(dt, decay, c, grad_y)
        grad_ends, grad_state = scan.carry(dt, decay, own, grad_last, reverse=True)
        *grads, grad_decay = scan.chunk_gradients(x, dt, decay, b, c, starts, grad_y, grad_ends)
        grad_x, grad_dt, grad_b, grad_c = (one.flatten(1, 2)[:, : ctx.length] for one in grads)
        return grad_x, grad_dt, grad_decay, grad_b, grad_c, grad_state


def _split(tensor: Tensor, chunk: int) -> Tensor:
    """[B, L, ...] as chunks [B, n, chunk, ...]. Zeros behind the end: with dt = 0 they do not change the state."""
    missing = -tensor.shape[1] % chunk
    padded = F.pad(tensor, (0, 0, 0, missing)) if missing else tensor
    return padded.unflatten(1, (-1, chunk)).contiguous()


def _has_kernels(x: Tensor) -> bool:
    """Whether the Triton kernels scan these inputs [B, L, D]."""
    return x.is_cuda and x.dtype == torch.float32 and x.shape[1] >= KERNEL_CHUNK and has_triton()


def _implementation(kernels: bool) -> Any:
    """The module with the functions below: `scan_triton`, or this one."""
    return import_module("unmask.models.scan_triton" if kernels else __name__)


# The functions below take chunks [B, n, Q, ...]. States are [B, n, N, D], one for each chunk.


def carry(dt: Tensor, decay: Tensor, values: Tensor, state: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """The states before each chunk, [B, n, N, D], and after the last one, in log2(n) steps.

    A chunk turns h into exp(sum of dt A) h + value; with `reverse` the last chunk comes first.
    """
    factors = torch.exp(dt.sum(dim=2)[:, :, None] * decay)
    if reverse:
        factors, values = factors.flip(1), values.flip(1)
    first = torch.addcmul(values[:, :1], factors[:, :1], state[:, None])
    after = torch.cat([first, values[:, 1:]], dim=1)
    distance = 1
    while distance < after.shape[1]:
        later = torch.addcmul(after[:, distance:], factors[:, distance:], after[:, :-distance])
        after = torch.cat([after[:, :distance], later], dim=1)
        factors = torch.cat([factors[:, :distance], factors[:, distance:] * factors[:, :-distance]], dim=1)
        distance *= 2
    before = torch.cat([state[:, None], after[:, :-1]], dim=1)
    return before.flip(1) if reverse else before, after[:, -1]


def chunk_ends(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor) -> Tensor:
    """The states in which the chunks end if they begin with zero."""
    dt, b = dt[:, :, :, None], b[..., None]
    inputs = dt * x[:, :, :, None]
    h = inputs[:, :, 0] * b[:, :, 0]
    for q in range(1, x.shape[2]):
        h = torch.addcmul(torch.exp(dt[:, :, q] * decay) * h, inputs[:, :, q], b[:, :, q])
    return h


def chunk_outputs(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, starts: Tensor) -> Tensor:
    """Outputs [B, n, Q, D] of chunks that begin with the states `starts`."""
    dt, b, c = dt[:, :, :, None], b[..., None], c[..., None]
    inputs = dt * x[:, :, :, None]
    h, outputs = starts, []
    for q in range(x.shape[2]):
        h = torch.addcmul(torch.exp(dt[:, :, q] * decay) * h, inputs[:, :, q], b[:, :, q])
        outputs.append((h * c[:, :, q]).sum(dim=2))
    return torch.stack(outputs, dim=2)


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
    decay: Tensor,
    b: Tensor,
    c: Tensor,
    starts: Tensor,
    grad_y: Tensor,
    grad_ends: Tensor,
) -> tuple[Tensor, ...]:
    """The gradients of x, dt, b, c, all [B, n, Q, ...], and of the decay [N, D]."""
    size = max(1, STATES_IN_BACKWARD // (x.shape[0] * x.shape[2] * decay.numel()))
    chunked = (x, dt, b, c, starts, grad_y, grad_ends)
    parts = [_gradients(decay, *part) for part in zip(*(one.split(size, dim=1) for one in chunked), strict=True)]
    *grads, grad_decay = zip(*parts, strict=True)
    return (*(torch.cat(one, dim=1) for one in grads), torch.stack(grad_decay).sum(dim=0))


def _gradients(
    decay: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, starts: Tensor, grad_y: Tensor, grad_ends: Tensor
) -> tuple[Tensor, ...]:
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
