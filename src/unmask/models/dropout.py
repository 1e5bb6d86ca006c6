"""Dropout that a compiler can fuse and draw again, so that its mask is never stored."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SPREAD, _FIRST, _SECOND = 0x9E3779B1 - (1 << 32), 0x7FEB352D, 0x846CA68B - (1 << 32)


class Dropout(nn.Module):
    """Zero each number with probability p in training and scale the others up.

    Compiled for a GPU the mask is a hash of each number's place and of one seed from torch's generator. torch's own
    draws ten rounds of Philox a number there, and keeps the mask for the backward pass.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        if x.is_cuda and torch.compiler.is_compiling():
            return hashed(x, self.p)
        return F.dropout(x, self.p)


def hashed(x: Tensor, p: float) -> Tensor:
    """Dropout by a mask that can be made again instead of kept."""
    return torch.where(kept(x, p), x * (1.0 / (1.0 - p)), 0.0)


def kept(x: Tensor, p: float) -> Tensor:
    """A fresh mask of the shape of x, True with probability 1 - p."""
    seeds = torch.randint(-(1 << 31), 1 << 31, (2,), device=x.device).to(torch.int32)
    place = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    return _mix((place ^ seeds[0]) * _SPREAD + seeds[1]) & 0x7FFFFFFF >= int(p * 2**31)


def _mix(word: Tensor) -> Tensor:
    """The bijection of `unmask.random` in 32-bit arithmetic that wraps around; shifts bring in zeros."""
    word = (word ^ ((word >> 16) & 0xFFFF)) * _FIRST
    word = (word ^ ((word >> 15) & 0x1FFFF)) * _SECOND
    return word ^ ((word >> 16) & 0xFFFF)
