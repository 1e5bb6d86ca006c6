"""Counter-based random numbers: a number is a hash of where it is used, never a state that someone must carry.

`uniform(seed, purpose, step, sample, position)` hashes five integers with tensor operations, so the same call gives the
same float on CPU and GPU, eager and compiled, on one process or eight, today or after a resume. Every argument may be
an int or an integer tensor; they broadcast. Ints before the first tensor are hashed by Python, by the same lines.

The mixer works on 32-bit words held in int64. Its multipliers are written as signed numbers below 2^31 in magnitude, so
no product leaves int64 and the wrap-around is an explicit `& 0xFFFFFFFF`.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - (1 << 32)
_OFFSET_LIMIT = 1.0 - 2.0**-24


class Purpose(IntEnum):
    """What a number is drawn for. Two purposes never share a number."""

    TIME = 1
    MASK = 2
    REVEAL = 3
    TOKEN = 4
    OFFSET = 5
    PATH = 6
    PARTICLE = 7
    RESAMPLE = 8
    WINDOW = 9


Integer = int | Tensor


def bits(
    seed: Integer,
    purpose: Purpose,
    step: Integer = 0,
    sample: Integer = 0,
    position: Integer = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """32 random bits (in int64) for every broadcast combination of the arguments."""
    if device is None:
        device = next((x.device for x in (seed, step, sample, position) if isinstance(x, Tensor)), None)
    state: Integer = 0
    for value in (int(purpose), seed, step, sample, position):
        state = _mix(state ^ _mix(_fold(value)))
    return state if isinstance(state, Tensor) else torch.full((), state, dtype=torch.int64, device=device)


def uniform(
    seed: Integer,
    purpose: Purpose,
    step: Integer = 0,
    sample: Integer = 0,
    position: Integer = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Float32 uniforms in (0, 1): midpoints of 2^32 cells, so that values near 0 keep their relative precision.

    The smallest is 2^-33. `exponential` rests on this: its argmin keeps the tail of a distribution right.
    """
    cell = bits(seed, purpose, step, sample, position, device)
    return ((2 * cell + 1).to(torch.float32) * 2.0**-33).clamp_max(_OFFSET_LIMIT)


def exponential(
    seed: Integer,
    purpose: Purpose,
    step: Integer = 0,
    sample: Integer = 0,
    position: Integer = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """Float32 Exp(1) draws, -log1p(-u), accurate near 0, where an argmin over a vocabulary looks."""
    return -torch.log1p(-uniform(seed, purpose, step, sample, position, device))


def _fold(value: Integer) -> Integer:
    """One 32-bit word of a 64-bit value; 0 does not stay 0.

    It is mixed before it meets the state, so that two sequences never see one another's numbers in another order.
    """
    if isinstance(value, Tensor):
        value = value.to(torch.int64)
    return (value & _WORD) ^ _mix((value >> 32) & _WORD) ^ 0x9E3779B9


def _mix(word: Integer) -> Integer:
    """A bijection of 32-bit words in which every input bit moves every output bit."""
    word = word ^ (word >> 16)
    word = (word * _MULTIPLIER_1) & _WORD
    word = word ^ (word >> 15)
    word = (word * _MULTIPLIER_2) & _WORD
    return word ^ (word >> 16)
