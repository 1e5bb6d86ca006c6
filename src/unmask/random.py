"""Counter-based random numbers: a number is a hash of the place where it is used, so there is no state to carry.

`uniform(seed, purpose, step, sample, position)` hashes five integers with tensor operations. The same call returns the
same float on CPU and GPU, eager and compiled, on one process or eight, and after a resume. Every argument is an int or
an integer tensor, and tensors broadcast. Ints before the first tensor are hashed in Python by the same code.

The mixer works on 32-bit words stored in int64. Its multipliers are signed numbers below 2^31 in magnitude, so products
never overflow int64 and the wrap-around is an explicit `& 0xFFFFFFFF`.
"""

from __future__ import annotations

from enum import IntEnum
from operator import index
from typing import Any

import torch
from torch import Tensor

from unmask.errors import UnmaskError

MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
_WORD = 0xFFFFFFFF
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B - (1 << 32)
_MAX_UNIFORM = 1.0 - 2.0**-24


class Purpose(IntEnum):
    """The use of a random number. Numbers of different purposes are independent."""

    TIME = 1
    MASK = 2
    REVEAL = 3
    TOKEN = 4
    OFFSET = 5
    PATH = 6
    PARTICLE = 7
    RESAMPLE = 8
    WINDOW = 9
    STRAND = 10
    ATTENTION = 11


Integer = int | Tensor


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, also a scalar of numpy or torch, but not a bool."""
    try:
        index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def check_seeds(seed: Any, count: int = 1) -> None:
    """Raise `UnmaskError` unless `seed` and the `count - 1` integers after it fit into 64 bits."""
    if not is_integer(seed):
        raise UnmaskError(f"seed must be an integer, got {seed!r}.")
    if not MIN_SEED <= seed <= MAX_SEED - count + 1:
        texts = f" for {count} texts" if count > 1 else ""
        raise UnmaskError(f"seed must be from -2**63 to 2**63 - {count}{texts}, got {seed}.")


def bits(
    seed: Integer,
    purpose: Purpose,
    step: Integer = 0,
    sample: Integer = 0,
    position: Integer = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    """32 random bits, as int64, for every combination of the broadcast arguments."""
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
    """Float32 uniforms in (0, 1): midpoints of 2^32 cells, so values near 0 keep their relative precision.

    The smallest value is 2^-33. `exponential` relies on it: its argmin draws rare tokens at the right rate.
    """
    cell = bits(seed, purpose, step, sample, position, device)
    return ((2 * cell + 1).to(torch.float32) * 2.0**-33).clamp_max(_MAX_UNIFORM)


def exponential(
    seed: Integer,
    purpose: Purpose,
    step: Integer = 0,
    sample: Integer = 0,
    position: Integer = 0,
) -> Tensor:
    """Float32 Exp(1) draws, -log1p(-u). They are accurate near 0, where the argmin over a vocabulary lies."""
    return -torch.log1p(-uniform(seed, purpose, step, sample, position))


def _fold(value: Integer) -> Integer:
    """Reduce a 64-bit value to one 32-bit word; 0 does not map to 0."""
    if isinstance(value, Tensor):
        value = value.to(torch.int64)
    return (value & _WORD) ^ _mix((value >> 32) & _WORD) ^ 0x9E3779B9


def _mix(word: Integer) -> Integer:
    """A bijection of 32-bit words in which every input bit affects every output bit."""
    word = word ^ (word >> 16)
    word = (word * _MULTIPLIER_1) & _WORD
    word = word ^ (word >> 15)
    word = (word * _MULTIPLIER_2) & _WORD
    return word ^ (word >> 16)
