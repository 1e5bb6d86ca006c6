"""The steps of `scan` as Triton kernels, which hold the states of a block of channels in registers.

A program is one warp with 32 channels: a thread has four channels of four numbers of their states, so that sums over
channels and over numbers need few exchanges. The backward pass goes through a chunk twice and keeps every second state
in between, in memory that the programs use again for the next chunk, small enough for the cache of the GPU. Sums over
blocks of channels have a fixed order, so that results repeat.
"""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 32
"""Channels of a program."""
BACKWARD_PROGRAMS = 1536
"""Programs of the backward pass, about as many as run at the same time; each goes through several chunks."""
REGISTERS = 168
"""Registers of a thread in the backward pass, so that twelve programs fit on a multiprocessor."""
CARRIED = 128
"""Numbers of states that a program carries along the chunks."""
LOG2_E, LN_2 = tl.constexpr(math.log2(math.e)), tl.constexpr(math.log(2.0))
"""The kernels multiply the rates by log2(e) once, since `exp2` is one instruction and `exp` is six."""


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
    rate = tl.load(decay + place, at_state, 0.0) * LOG2_E
    h = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for q in range(TOKENS):
        row = chunk * TOKENS + q
        size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
        token = tl.load(x + row * WIDTH + d, at_d, 0.0)
        write = tl.load(b + row * SIZE + n, at_n, 0.0)
        h = tl.exp2(size[None, :] * rate) * h + (size * token)[None, :] * write[:, None]
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
    rate = tl.load(decay + place, exists, 0.0) * LOG2_E
    h = tl.load(state + batch * SIZE * WIDTH + place, exists, 0.0)
    for i in tl.range(0, chunks, loop_unroll_factor=8):  # the loads of eight chunks do not wait for each other
        chunk = batch * chunks + (chunks - 1 - i if REVERSE else i)
        step = tl.load(steps + chunk * WIDTH + place % WIDTH, exists, 0.0)
        value = tl.load(values + chunk * SIZE * WIDTH + place, exists, 0.0)
        tl.store(before + chunk * SIZE * WIDTH + place, h, exists)
        h = tl.exp2(step * rate) * h + value
    tl.store(last + batch * SIZE * WIDTH + place, h, exists)


@triton.jit
def _outputs_kernel(
    x, dt, decay, b, c, starts, y,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)
    d, n, at_d, at_n, at_state, place = _places(WIDTH, SIZE, CHANNELS, NUMBERS)
    rate = tl.load(decay + place, at_state, 0.0) * LOG2_E
    h = tl.load(starts + chunk * SIZE * WIDTH + place, at_state, 0.0)
    for q in range(TOKENS):
        row = chunk * TOKENS + q
        size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
        token = tl.load(x + row * WIDTH + d, at_d, 0.0)
        write = tl.load(b + row * SIZE + n, at_n, 0.0)
        read = tl.load(c + row * SIZE + n, at_n, 0.0)
        h = tl.exp2(size[None, :] * rate) * h + (size * token)[None, :] * write[:, None]
        tl.store(y + row * WIDTH + d, tl.sum(h * read[:, None], axis=0), at_d)


@triton.jit
def _start_gradients_kernel(
    dt, decay, c, grad_y, grad_starts,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """The gradient of the state in which each chunk begins, from its own outputs."""
    chunk = tl.program_id(0).to(tl.int64)
    d, n, at_d, at_n, at_state, place = _places(WIDTH, SIZE, CHANNELS, NUMBERS)
    rate = tl.load(decay + place, at_state, 0.0) * LOG2_E
    g = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for step in range(TOKENS):
        row = chunk * TOKENS + TOKENS - 1 - step
        size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
        read = tl.load(c + row * SIZE + n, at_n, 0.0)
        grad = tl.load(grad_y + row * WIDTH + d, at_d, 0.0)
        g = tl.exp2(size[None, :] * rate) * (g + read[:, None] * grad[None, :])
    tl.store(grad_starts + chunk * SIZE * WIDTH + place, g, at_state)


@triton.jit
def _load_token(x, dt, b, row, d, n, at_d, at_n, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """The step sizes and inputs [1, D] of a token, and its input coefficients [N, 1]."""
    size = tl.load(dt + row * WIDTH + d, at_d, 0.0)
    token = tl.load(x + row * WIDTH + d, at_d, 0.0)
    write = tl.load(b + row * SIZE + n, at_n, 0.0)
    return size[None, :], token[None, :], write[:, None]


@triton.jit
def _token_gradients(
    g, before, after, factor, rate, size, token, write,
    c, grad_y, grad_x, grad_dt, grad_b, grad_c, row, block, blocks, d, n, at_d, at_n,
    WIDTH: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a token, and return those of the state before it and of its exponents.

    `g` is the gradient of the state `after` the token from what follows, without the token's own output.
    """
    read = tl.load(c + row * SIZE + n, at_n, 0.0)[:, None]
    grad = tl.load(grad_y + row * WIDTH + d, at_d, 0.0)[None, :]
    g += read * grad
    part = (row * blocks + block) * SIZE + n
    tl.store(grad_c + part, tl.sum(after * grad, axis=1), at_n)
    tl.store(grad_b + part, tl.sum(g * (size * token), axis=1), at_n)
    grad_input = tl.sum(g * write, axis=0)[None, :]
    tl.store(grad_x + row * WIDTH + d[None, :], grad_input * size, at_d[None, :])
    g = factor * g
    grad_exponent = g * before
    grad_size = tl.sum(grad_exponent * rate, axis=0)[None, :] * LN_2 + grad_input * token
    tl.store(grad_dt + row * WIDTH + d[None, :], grad_size, at_d[None, :])
    return g, grad_exponent


@triton.jit
def _gradients_kernel(
    x, dt, decay, b, c, starts, grad_y, grad_ends, states,
    grad_x, grad_dt, grad_b, grad_c, grad_decay, chunks,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    program, block, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    d, n, at_d, at_n, at_state, place = _places(WIDTH, SIZE, CHANNELS, NUMBERS)
    rate = tl.load(decay + place, at_state, 0.0) * LOG2_E
    own_place = tl.arange(0, NUMBERS)[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    own_states = states + (program * blocks + block) * (TOKENS // 2 * NUMBERS * CHANNELS) + own_place
    sum_decay = tl.zeros((NUMBERS, CHANNELS), tl.float32)
    for chunk in range(program, chunks, tl.num_programs(0)):
        h = tl.load(starts + chunk * SIZE * WIDTH + place, at_state, 0.0)
        for pair in range(TOKENS // 2):
            tl.store(own_states + pair * (NUMBERS * CHANNELS), h)
            for i in tl.static_range(2):
                row = chunk * TOKENS + 2 * pair + i
                size, token, write = _load_token(x, dt, b, row, d, n, at_d, at_n, WIDTH, SIZE)
                h = tl.exp2(size * rate) * h + size * token * write
        tl.debug_barrier()
        g = tl.load(grad_ends + chunk * SIZE * WIDTH + place, at_state, 0.0)
        for step in range(TOKENS // 2):
            pair = TOKENS // 2 - 1 - step
            start = tl.load(own_states + pair * (NUMBERS * CHANNELS))
            row = chunk * TOKENS + 2 * pair
            size, token, write = _load_token(x, dt, b, row, d, n, at_d, at_n, WIDTH, SIZE)
            factor = tl.exp2(size * rate)
            middle = factor * start + size * token * write
            later_size, later_token, later_write = _load_token(x, dt, b, row + 1, d, n, at_d, at_n, WIDTH, SIZE)
            later_factor = tl.exp2(later_size * rate)
            g, grad_exponent = _token_gradients(
                g, middle, h, later_factor, rate, later_size, later_token, later_write,
                c, grad_y, grad_x, grad_dt, grad_b, grad_c, row + 1, block, blocks, d, n, at_d, at_n, WIDTH, SIZE,
            )  # fmt: skip
            sum_decay += grad_exponent * later_size
            g, grad_exponent = _token_gradients(
                g, start, middle, factor, rate, size, token, write,
                c, grad_y, grad_x, grad_dt, grad_b, grad_c, row, block, blocks, d, n, at_d, at_n, WIDTH, SIZE,
            )  # fmt: skip
            sum_decay += grad_exponent * size
            h = start
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
    numbers = triton.next_power_of_2(len(decay)) * CHANNELS
    states = x.new_empty(programs, blocks, tokens // 2, numbers)
    grad_decay = x.new_empty(programs, *decay.shape)
    grad_x, grad_dt = torch.empty_like(x), torch.empty_like(x)
    grad_b, grad_c = (x.new_empty(*x.shape[:3], blocks, len(decay)) for _ in range(2))
    inputs = (x, dt, decay, b, c, starts, grad_y, grad_ends, states)
    outputs = (grad_x, grad_dt, grad_b, grad_c, grad_decay)
    _launch(_gradients_kernel, x, decay, (*inputs, *outputs), batch * chunks, programs=programs, maxnreg=REGISTERS)
    return grad_x, grad_dt, grad_b.sum(dim=3), grad_c.sum(dim=3), grad_decay.sum(dim=0)


def _launch(
    kernel: triton.JITFunction,
    chunked: Tensor,
    decay: Tensor,
    tensors: tuple[Tensor, ...],
    *numbers: int,
    programs: int | None = None,
    **options: int,
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
            **options,
        )
