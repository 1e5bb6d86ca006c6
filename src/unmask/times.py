"""Low-discrepancy draws of t: the strata of a global batch, dealt so that every micro-batch is stratified too."""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.random import Integer, Purpose, uniform


def van_der_corput(size: int, device: torch.device | str | None = None) -> Tensor:
    """[size] the strata 0 .. size-1 in van der Corput order: rank of each index by its reversed bits.

    Any contiguous run of a power-of-two length, aligned, hits every coarse stratum equally often.
    """
    index = torch.arange(size, device=device)
    reversed_bits = torch.zeros_like(index)
    for bit in range(max(1, (size - 1).bit_length())):
        reversed_bits = (reversed_bits << 1) | ((index >> bit) & 1)
    return reversed_bits.argsort().argsort()


def low_discrepancy(offset: Tensor, stratum: Tensor, size: int) -> Tensor:
    """t = (offset + stratum / size) mod 1 in float32; each t is uniform, and the `size` of them are evenly spread."""
    return torch.remainder(offset + stratum.to(torch.float32) / size, 1.0)


def draw_times(seed: Integer, step: Integer, index: Tensor, batch_size: int, purpose: Purpose = Purpose.TIME) -> Tensor:
    """[B] times of the samples `index` (positions inside the global batch of `batch_size`) of training step `step`.

    They depend on the seed, the step and the place in the global batch alone, not on how it is cut into micro-batches.
    """
    offset = uniform(seed, purpose, step=step, device=index.device)
    return low_discrepancy(offset, van_der_corput(batch_size, index.device)[index], batch_size)
