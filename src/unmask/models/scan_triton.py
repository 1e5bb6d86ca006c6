"""The loops over the tokens of a chunk of `scan` as Triton kernels, which hold the state in registers.

A kernel runs one program for every chunk and block of channels. The backward pass writes the states of its chunks to
memory once, and reads them in reverse order. Sums over blocks of channels have a fixed order, so that results repeat.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.models.scan import boundary_gradients, chunk_boundaries

CHANNELS = 64
"""Channels of a program."""


@triton.jit
def _ends_kernel(
    x, dt, decay, b, ends, tokens, channels, numbers, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr
):  # the state in which each chunk ends if it begins with zero
    chunk = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, NUMBERS)
    at_d, at_n = d < channels, n < numbers
    at_state = at_n[:, None] & at_d[None, :]
    place = n[:, None] * channels + d[None, :]
    rate = tl.load(decay + place, at_state, 0.0)
    h = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for q in range(tokens):
        row = chunk * tokens + q
        size = tl.load(dt + row * channels + d, at_d, 0.0)
        token = tl.load(x + row * channels + d, at_d, 0.0)
        write = tl.load(b + row * numbers + n, at_n, 0.0)
        h = tl.exp(size[None, :] * rate) * h + (size * token)[None, :] * write[:, None]
    tl.store(ends + chunk * numbers * channels + place, h, at_state)


@triton.jit
def _outputs_kernel(
    x, dt, decay, b, c, starts, y, tokens, channels, numbers, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr
):
    chunk = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, NUMBERS)
    at_d, at_n = d < channels, n < numbers
    at_state = at_n[:, None] & at_d[None, :]
    place = n[:, None] * channels + d[None, :]
    rate = tl.load(decay + place, at_state, 0.0)
    h = tl.load(starts + chunk * numbers * channels + place, at_state, 0.0)
    for q in range(tokens):
        row = chunk * tokens + q
        size = tl.load(dt + row * channels + d, at_d, 0.0)
        token = tl.load(x + row * channels + d, at_d, 0.0)
        write = tl.load(b + row * numbers + n, at_n, 0.0)
        read = tl.load(c + row * numbers + n, at_n, 0.0)
        h = tl.exp(size[None, :] * rate) * h + (size * token)[None, :] * write[:, None]
        tl.store(y + row * channels + d, tl.sum(h * read[:, None], axis=0), at_d)


@triton.jit
def _end_gradients_kernel(
    dt, decay, c, grad_y, grad_starts, tokens, channels, numbers, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr
):  # the gradient of the state in which each chunk begins, from its own outputs
    chunk = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, NUMBERS)
    at_d, at_n = d < channels, n < numbers
    at_state = at_n[:, None] & at_d[None, :]
    place = n[:, None] * channels + d[None, :]
    rate = tl.load(decay + place, at_state, 0.0)
    g = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for step in range(tokens):
        row = chunk * tokens + tokens - 1 - step
        size = tl.load(dt + row * channels + d, at_d, 0.0)
        read = tl.load(c + row * numbers + n, at_n, 0.0)
        grad = tl.load(grad_y + row * channels + d, at_d, 0.0)
        g = tl.exp(size[None, :] * rate) * (g + read[:, None] * grad[None, :])
    tl.store(grad_starts + chunk * numbers * channels + place, g, at_state)


@triton.jit
def _gradients_kernel(
    x, dt, decay, b, c, starts, grad_y, grad_ends, states,
    grad_x, grad_dt, grad_b, grad_c, grad_decay,
    tokens, channels, numbers, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    chunk, block, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    d = block * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, NUMBERS)
    at_d, at_n = d < channels, n < numbers
    at_state = at_n[:, None] & at_d[None, :]
    place = n[:, None] * channels + d[None, :]
    rate = tl.load(decay + place, at_state, 0.0)
    h = tl.load(starts + chunk * numbers * channels + place, at_state, 0.0)
    for q in range(tokens):
        row = chunk * tokens + q
        tl.store(states + row * numbers * channels + place, h, at_state)
        size = tl.load(dt + row * channels + d, at_d, 0.0)
        token = tl.load(x + row * channels + d, at_d, 0.0)
        write = tl.load(b + row * numbers + n, at_n, 0.0)
        h = tl.exp(size[None, :] * rate) * h + (size * token)[None, :] * write[:, None]
    tl.debug_barrier()
    g = tl.load(grad_ends + chunk * numbers * channels + place, at_state, 0.0)
    sum_decay = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for step in range(tokens):
        row = chunk * tokens + tokens - 1 - step
        before = tl.load(states + row * numbers * channels + place, at_state, 0.0)
        size = tl.load(dt + row * channels + d, at_d, 0.0)
        token = tl.load(x + row * channels + d, at_d, 0.0)
        write = tl.load(b + row * numbers + n, at_n, 0.0)
        read = tl.load(c + row * numbers + n, at_n, 0.0)
        grad = tl.load(grad_y + row * channels + d, at_d, 0.0)
        factor = tl.exp(size[None, :] * rate)
        after = factor * before + (size * token)[None, :] * write[:, None]
        g += read[:, None] * grad[None, :]
        part = (row * blocks + block) * numbers + n
        tl.store(grad_c + part, tl.sum(after * grad[None, :], axis=1), at_n)
        tl.store(grad_b + part, tl.sum(g * (size * token)[None, :], axis=1), at_n)
        grad_input = tl.sum(g * write[:, None], axis=0)
        tl.store(grad_x + row * channels + d, grad_input * size, at_d)
        g = factor * g
        grad_exponent = g * before
        tl.store(grad_dt + row * channels + d, tl.sum(grad_exponent * rate, axis=0) + grad_input * token, at_d)
        sum_decay += grad_exponent * size[None, :]
    tl.store(grad_decay + chunk * numbers * channels + place, sum_decay, at_state)


# The functions below replace those of `scan` with the same names. Chunks are [B, n, Q, ...], states [B, n, N, D].


def scan_chunks(
    x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [B, n, Q, D], the last state [B, N, D], and the states in which the chunks begin."""
    x, dt, decay, b, c = (one.contiguous() for one in (x, dt, decay, b, c))
    own_ends = x.new_empty(*x.shape[:2], *decay.shape)
    _launch(_ends_kernel, x, decay, (x, dt, decay, b, own_ends))
    starts, ends = chunk_boundaries(own_ends, dt, decay, state)
    outputs = torch.empty_like(x)
    _launch(_outputs_kernel, x, decay, (x, dt, decay, b, c, starts, outputs))
    return outputs, ends[:, -1], starts


def end_gradients(dt: Tensor, decay: Tensor, c: Tensor, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the states in which the chunks end, and of the state before the first token."""
    dt, decay, c, grad_y = (one.contiguous() for one in (dt, decay, c, grad_y))
    own = dt.new_empty(*dt.shape[:2], *decay.shape)
    _launch(_end_gradients_kernel, dt, decay, (dt, decay, c, grad_y, own))
    return boundary_gradients(own, dt, decay, grad_last)


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
    inputs = [one.contiguous() for one in (x, dt, decay, b, c, starts, grad_y, grad_ends)]
    blocks = triton.cdiv(decay.shape[1], CHANNELS)
    states = x.new_empty(*x.shape[:3], *decay.shape)
    grad_x, grad_dt = x.new_empty(x.shape), x.new_empty(x.shape)
    grad_b, grad_c = (x.new_empty(*x.shape[:3], blocks, len(decay)) for _ in range(2))
    grad_decay = x.new_empty(*x.shape[:2], *decay.shape)
    _launch(_gradients_kernel, x, decay, (*inputs, states, grad_x, grad_dt, grad_b, grad_c, grad_decay))
    return grad_x, grad_dt, grad_b.sum(dim=3), grad_c.sum(dim=3), grad_decay.sum(dim=(0, 1))


def _launch(kernel: triton.JITFunction, x: Tensor, decay: Tensor, tensors: tuple[Tensor, ...]) -> None:
    batch, chunks, tokens, channels = x.shape
    grid = (batch * chunks, triton.cdiv(channels, CHANNELS))
    numbers = len(decay)
    with torch.cuda.device_of(x):
        kernel[grid](*tensors, tokens, channels, numbers, CHANNELS=CHANNELS, NUMBERS=triton.next_power_of_2(numbers))
