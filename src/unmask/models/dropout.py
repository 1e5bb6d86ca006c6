"""Dropout whose mask costs little: fused and drawn again on a GPU, of few random bits on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SPREAD, _FIRST, _SECOND = 0x9E3779B1 - (1 << 32), 0x7FEB352D, 0x846CA68B - (1 << 32)
_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zero each number with probability p in training and scale the others up.

    With two seeds the mask is a hash of each number's place and of them, which a compiler makes again in the backward
    pass; torch's own draws ten rounds of Philox a number on a GPU, and keeps the mask. On a CPU four numbers share one
    word of torch's generator, which takes a third of the time of a draw each.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, seeds: Tensor | None = None) -> Tensor:
        if not self.training or not self.p:
            return x
        if seeds is not None and self.p < 1:
            return hashed(x, self.p, seeds)
        if x.device.type == "cpu" and self.p < 1:
            return shared(x, self.p)
        return F.dropout(x, self.p)


def draw_seeds(*shape: int, device: torch.device) -> Tensor:
    """[*shape, 2] seeds from torch's generator.

    Draw them outside of what is compiled: who draws inside may draw others in the backward pass, where a compiler is
    free to make the cheap parts of the forward pass again and protects no `randint` from that.
    """
    return torch.randint(-(1 << 31), 1 << 31, (*shape, 2), device=device).to(torch.int32)


def hashed(x: Tensor, p: float, seeds: Tensor) -> Tensor:
    """Dropout by a mask that can be made again instead of kept."""
    return torch.where(kept(x, p, seeds), x * (1.0 / (1.0 - p)), 0.0)


def kept(x: Tensor, p: float, seeds: Tensor) -> Tensor:
    """The mask of the shape of x that two seeds say, True with probability 1 - p."""
    place = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    return _mix((place ^ seeds[0]) * _SPREAD + seeds[1]) & 0x7FFFFFFF >= int(p * 2**31)


def shared(x: Tensor, p: float) -> Tensor:
    """Dropout by 16 random bits a number: p is rounded to 2^-16, and what is kept scaled by what p has become."""
    dropped = min(round(p * _LEVELS), _LEVELS - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    level = words.view(torch.int16)[: x.numel()].view(x.shape)
    return x * (level >= dropped - _LEVELS // 2).to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))


def _mix(word: Tensor) -> Tensor:
    """The bijection of `unmask.random` in 32-bit arithmetic that wraps around; shifts bring in zeros."""
    word = (word ^ ((word >> 16) & 0xFFFF)) * _FIRST
    word = (word ^ ((word >> 15) & 0x1FFFF)) * _SECOND
    return word ^ ((word >> 16) & 0xFFFF)
