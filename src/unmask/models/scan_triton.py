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

CHANNELS = 64
"""Channels of a program."""


@triton.jit
def _places(channels, numbers, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr):
    """The channels and numbers of a program, whether they exist, and where they are in the state of a chunk."""
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, NUMBERS)
    at_d, at_n = d < channels, n < numbers
    return d, n, at_d, at_n, at_n[:, None] & at_d[None, :], n[:, None] * channels + d[None, :]


@triton.jit
def _ends_kernel(x, dt, decay, b, ends, tokens, channels, numbers, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr):
    """The state in which each chunk ends if it begins with zero."""
    chunk = tl.program_id(0).to(tl.int64)
    d, n, at_d, at_n, at_state, place = _places(channels, numbers, CHANNELS, NUMBERS)
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
    x, dt, decay, b, c, starts, y, ends, tokens, channels, numbers, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr
):
    chunk = tl.program_id(0).to(tl.int64)
    d, n, at_d, at_n, at_state, place = _places(channels, numbers, CHANNELS, NUMBERS)
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
    tl.store(ends + chunk * numbers * channels + place, h, at_state)


@triton.jit
def _start_gradients_kernel(
    dt, decay, c, grad_y, grad_starts, tokens, channels, numbers, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr
):
    """The gradient of the state in which each chunk begins, from its own outputs."""
    chunk = tl.program_id(0).to(tl.int64)
    d, n, at_d, at_n, at_state, place = _places(channels, numbers, CHANNELS, NUMBERS)
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
    d, n, at_d, at_n, at_state, place = _places(channels, numbers, CHANNELS, NUMBERS)
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


def chunk_ends(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor) -> Tensor:
    """The states in which the chunks end if they begin with zero."""
    ends = x.new_empty(*x.shape[:2], *decay.shape)
    _launch(_ends_kernel, x, decay, (x, dt, decay, b, ends))
    return ends


def chunk_outputs(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [B, n, Q, D] of chunks that begin with the states `starts`, and the states in which they end."""
    outputs, ends = x.new_empty(x.shape), starts.new_empty(starts.shape)
    _launch(_outputs_kernel, x, decay, (x, dt, decay, b, c, starts, outputs, ends))
    return outputs, ends


def chunk_start_gradients(dt: Tensor, decay: Tensor, c: Tensor, grad_y: Tensor) -> Tensor:
    """The gradients of the states in which the chunks begin, from the outputs of their own chunk."""
    grad_starts = dt.new_empty(*dt.shape[:2], *decay.shape)
    _launch(_start_gradients_kernel, dt, decay, (dt, decay, c, grad_y, grad_starts))
    return grad_starts


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
    blocks = triton.cdiv(decay.shape[1], CHANNELS)
    states = x.new_empty(*x.shape[:3], *decay.shape)
    grad_x, grad_dt = x.new_empty(x.shape), x.new_empty(x.shape)
    grad_b, grad_c = (x.new_empty(*x.shape[:3], blocks, len(decay)) for _ in range(2))
    grad_decay = x.new_empty(*x.shape[:2], *decay.shape)
    inputs = (x, dt, decay, b, c, starts, grad_y, grad_ends)
    _launch(_gradients_kernel, x, decay, (*inputs, states, grad_x, grad_dt, grad_b, grad_c, grad_decay))
    return grad_x, grad_dt, grad_b.sum(dim=3), grad_c.sum(dim=3), grad_decay.sum(dim=(0, 1))


def _launch(kernel: triton.JITFunction, x: Tensor, decay: Tensor, tensors: tuple[Tensor, ...]) -> None:
    """Run a program for every chunk and block of channels. The kernels expect contiguous tensors."""
    batch, chunks, tokens, channels = x.shape
    grid = (batch * chunks, triton.cdiv(channels, CHANNELS))
    numbers = len(decay)
    with torch.cuda.device_of(x):
        kernel[grid](
            *(one.contiguous() for one in tensors),
            tokens,
            channels,
            numbers,
            CHANNELS=CHANNELS,
            NUMBERS=triton.next_power_of_2(numbers),
        )
