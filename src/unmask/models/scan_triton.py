"""The steps of `scan` as Triton kernels, which hold the states of a block of channels in registers.

A program is one warp with 32 channels: a thread has four channels of four numbers of their states, so that sums over
channels and over numbers need few exchanges. The backward pass goes through a chunk twice and keeps its states in
between in memory that the programs use again for the next chunk, small enough for the cache of the GPU. Sums over
blocks of channels have a fixed order, so that results repeat.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 32
"""Channels of a program."""
BACKWARD_PROGRAMS = 1536
"""Programs of the backward pass, about as many as run at the same time; each goes through several chunks."""
CARRIED = 128
"""Numbers of states that a program carries along the chunks."""


@triton.jit
def _places(WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr):
    """The channels d and numbers n of a program, whether they exist, and where they are in the state of a chunk."""
    d = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    n = tl.arange(0, NUMBERS)
    at_d, at_n = d < WIDTH, n < SIZE
    return d, n, at_d, at_n, at_n[:, None] & at_d[None, :], n[:, None] * WIDTH + d[None, :]


@triton.jit
def _ends_kernel(
    x, dt, decay, b, ends,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """The state in which each chunk ends if it begins with zero."""
    chunk = tl.program_id(0).to(tl.int64)
    d, n, at_d, at_n, at_state, place = _places(WIDTH, SIZE, CHANNELS, NUMBERS)
    rate = tl.load(decay + place, at_state, 0.0)
    h = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for q in range(TOKENS):
        row = chunk * TOKENS + q
        size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
        token = tl.load(x + row * WIDTH + d, at_d, 0.0)
        write = tl.load(b + row * SIZE + n, at_n, 0.0)
        h = tl.exp(size[None, :] * rate) * h + (size * token)[None, :] * write[:, None]
    tl.store(ends + chunk * SIZE * WIDTH + place, h, at_state)


@triton.jit
def _carry_kernel(
    steps, decay, values, state, before, last, chunks,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, REVERSE: tl.constexpr, CARRIED: tl.constexpr,
):  # fmt: skip
    """The states before each chunk and after the last one; with REVERSE from the last chunk to the first."""
    batch = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * CARRIED + tl.arange(0, CARRIED)
    exists = place < SIZE * WIDTH
    rate = tl.load(decay + place, exists, 0.0)
    h = tl.load(state + batch * SIZE * WIDTH + place, exists, 0.0)
    for i in tl.range(0, chunks, loop_unroll_factor=8):  # the loads of eight chunks do not wait for each other
        chunk = batch * chunks + (chunks - 1 - i if REVERSE else i)
        step = tl.load(steps + chunk * WIDTH + place % WIDTH, exists, 0.0)
        value = tl.load(values + chunk * SIZE * WIDTH + place, exists, 0.0)
        tl.store(before + chunk * SIZE * WIDTH + place, h, exists)
        h = tl.exp(step * rate) * h + value
    tl.store(last + batch * SIZE * WIDTH + place, h, exists)


@triton.jit
def _outputs_kernel(
    x, dt, decay, b, c, starts, y,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)
    d, n, at_d, at_n, at_state, place = _places(WIDTH, SIZE, CHANNELS, NUMBERS)
    rate = tl.load(decay + place, at_state, 0.0)
    h = tl.load(starts + chunk * SIZE * WIDTH + place, at_state, 0.0)
    for q in range(TOKENS):
        row = chunk * TOKENS + q
        size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
        token = tl.load(x + row * WIDTH + d, at_d, 0.0)
        write = tl.load(b + row * SIZE + n, at_n, 0.0)
        read = tl.load(c + row * SIZE + n, at_n, 0.0)
        h = tl.exp(size[None, :] * rate) * h + (size * token)[None, :] * write[:, None]
        tl.store(y + row * WIDTH + d, tl.sum(h * read[:, None], axis=0), at_d)


@triton.jit
def _start_gradients_kernel(
    dt, decay, c, grad_y, grad_starts,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """The gradient of the state in which each chunk begins, from its own outputs."""
    chunk = tl.program_id(0).to(tl.int64)
    d, n, at_d, at_n, at_state, place = _places(WIDTH, SIZE, CHANNELS, NUMBERS)
    rate = tl.load(decay + place, at_state, 0.0)
    g = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for step in range(TOKENS):
        row = chunk * TOKENS + TOKENS - 1 - step
        size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
        read = tl.load(c + row * SIZE + n, at_n, 0.0)
        grad = tl.load(grad_y + row * WIDTH + d, at_d, 0.0)
        g = tl.exp(size[None, :] * rate) * (g + read[:, None] * grad[None, :])
    tl.store(grad_starts + chunk * SIZE * WIDTH + place, g, at_state)


@triton.jit
def _gradients_kernel(
    x, dt, decay, b, c, starts, grad_y, grad_ends, states,
    grad_x, grad_dt, grad_b, grad_c, grad_decay, chunks,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    program, block, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    d, n, at_d, at_n, at_state, place = _places(WIDTH, SIZE, CHANNELS, NUMBERS)
    rate = tl.load(decay + place, at_state, 0.0)
    own_states = states + program * TOKENS * SIZE * WIDTH + place
    sum_decay = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for chunk in range(program, chunks, tl.num_programs(0)):
        h = tl.load(starts + chunk * SIZE * WIDTH + place, at_state, 0.0)
        for q in range(TOKENS):
            row = chunk * TOKENS + q
            tl.store(own_states + q * SIZE * WIDTH, h, at_state)
            size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
            token = tl.load(x + row * WIDTH + d, at_d, 0.0)
            write = tl.load(b + row * SIZE + n, at_n, 0.0)
            h = tl.exp(size[None, :] * rate) * h + (size * token)[None, :] * write[:, None]
        tl.debug_barrier()
        g = tl.load(grad_ends + chunk * SIZE * WIDTH + place, at_state, 0.0)
        for step in range(TOKENS):
            q = TOKENS - 1 - step
            row = chunk * TOKENS + q
            before = tl.load(own_states + q * SIZE * WIDTH, at_state, 0.0)
            size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
            token = tl.load(x + row * WIDTH + d, at_d, 0.0)
            write = tl.load(b + row * SIZE + n, at_n, 0.0)
            read = tl.load(c + row * SIZE + n, at_n, 0.0)
            grad = tl.load(grad_y + row * WIDTH + d, at_d, 0.0)
            factor = tl.exp(size[None, :] * rate)
            after = factor * before + (size * token)[None, :] * write[:, None]
            g += read[:, None] * grad[None, :]
            part = (row * blocks + block) * SIZE + n
            tl.store(grad_c + part, tl.sum(after * grad[None, :], axis=1), at_n)
            tl.store(grad_b + part, tl.sum(g * (size * token)[None, :], axis=1), at_n)
            grad_input = tl.sum(g * write[:, None], axis=0)
            tl.store(grad_x + row * WIDTH + d, grad_input * size, at_d)
            g = factor * g
            grad_exponent = g * before
            tl.store(grad_dt + row * WIDTH + d, tl.sum(grad_exponent * rate, axis=0) + grad_input * token, at_d)
            sum_decay += grad_exponent * size[None, :]
        tl.debug_barrier()
    tl.store(grad_decay + program * SIZE * WIDTH + place, sum_decay, at_state)


# The functions below replace those of `scan` with the same names. Chunks are [B, n, Q, ...], states [B, n, N, D].


def chunk_ends(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor) -> Tensor:
    """The states in which the chunks end if they begin with zero."""
    ends = x.new_empty(*x.shape[:2], *decay.shape)
    _launch(_ends_kernel, x, decay, (x, dt, decay, b, ends))
    return ends


def carry(dt: Tensor, decay: Tensor, values: Tensor, state: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """The states before each chunk, and after the last one."""
    state = state.contiguous()
    before, last = torch.empty_like(values), torch.empty_like(state)
    batch, chunks, _, width = dt.shape
    grid = (batch, triton.cdiv(decay.numel(), CARRIED))
    tensors = (dt.sum(dim=2), decay, values, state, before, last)
    with torch.cuda.device_of(dt):
        _carry_kernel[grid](*tensors, chunks, WIDTH=width, SIZE=len(decay), REVERSE=reverse, CARRIED=CARRIED)
    return before, last


def chunk_outputs(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor, starts: Tensor) -> Tensor:
    """Outputs [B, n, Q, D] of chunks that begin with the states `starts`."""
    outputs = torch.empty_like(x)
    _launch(_outputs_kernel, x, decay, (x, dt, decay, b, c, starts, outputs))
    return outputs


def chunk_start_gradients(dt: Tensor, decay: Tensor, c: Tensor, grad_y: Tensor) -> Tensor:
    """The gradients of the states in which the chunks begin, from the outputs of their own chunk."""
    grad_starts = dt.new_empty(*dt.shape[:2], *decay.shape)
    _launch(_start_gradients_kernel, dt, decay, (dt, decay, c, grad_y, grad_starts))
    return grad_starts


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
    batch, chunks, tokens, width = x.shape
    blocks = triton.cdiv(width, CHANNELS)
    programs = min(batch * chunks, triton.cdiv(BACKWARD_PROGRAMS, blocks))
    states, grad_decay = x.new_empty(programs, tokens, *decay.shape), x.new_empty(programs, *decay.shape)
    grad_x, grad_dt = torch.empty_like(x), torch.empty_like(x)
    grad_b, grad_c = (x.new_empty(*x.shape[:3], blocks, len(decay)) for _ in range(2))
    inputs = (x, dt, decay, b, c, starts, grad_y, grad_ends, states)
    outputs = (grad_x, grad_dt, grad_b, grad_c, grad_decay)
    _launch(_gradients_kernel, x, decay, (*inputs, *outputs), batch * chunks, programs=programs)
    return grad_x, grad_dt, grad_b.sum(dim=3), grad_c.sum(dim=3), grad_decay.sum(dim=0)


def _launch(
    kernel: triton.JITFunction,
    chunked: Tensor,
    decay: Tensor,
    tensors: tuple[Tensor, ...],
    *numbers: int,
    programs: int | None = None,
) -> None:
    """Run a program for every chunk, or so many programs, and block of channels. Kernels expect contiguous tensors."""
    batch, chunks, tokens, width = chunked.shape
    grid = (programs or batch * chunks, triton.cdiv(width, CHANNELS))
    with torch.cuda.device_of(chunked):
        kernel[grid](
            *tensors,
            *numbers,
            TOKENS=tokens,
            WIDTH=width,
            SIZE=len(decay),
            CHANNELS=CHANNELS,
            NUMBERS=triton.next_power_of_2(len(decay)),
            num_warps=1,
        )
