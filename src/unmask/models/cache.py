"""The key-value cache of left-to-right sampling: allocated once, written at a place that is a tensor.

No shape changes from one token to the next, so that a step can be captured once as a CUDA graph and replayed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unmask.models.attention import Scope

STRIDE = {"cpu": 16, "cuda": 256}
"""Queries look at this many keys, at twice as many, and so on: one shape for each, and on a GPU one graph."""


class SlotCache:
    """Room for `capacity` tokens. Say with `seek` where the next tokens stand, outside of what is captured."""

    def __init__(self, layers: int, capacity: int, device: torch.device) -> None:
        self.layers = layers
        self.capacity = capacity
        self.stride = STRIDE.get(device.type, 256)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.reach = 0
        """Keys that queries look at; those behind the query itself are masked."""
        self._places = self.position
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def seek(self, position: int, length: int) -> None:
        """The next `length` tokens stand at position, position + 1, ..., behind those that are read already."""
        self.position.fill_(position)
        self.reach = min(self.capacity, -(-(position + length) // self.stride) * self.stride)

    def open(self, length: int) -> Scope:
        """Begin a pass over `length` tokens; which keys they may see."""
        device = self.position.device
        self._places = self.position + torch.arange(length, device=device)
        seen = torch.arange(self.reach, device=device) <= self._places[:, None]
        return Scope(seen[None, None], is_causal=False)

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keep keys and values [B, H, L, d] of a layer; all that are in reach, [B, H, reach, d]."""
        if self._keys is None or self._values is None:
            shape = (self.layers, *key.shape[:2], self.capacity, key.shape[3])
            self._keys, self._values = key.new_zeros(shape), value.new_zeros(shape)
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(2, self._places, key)
        values.index_copy_(2, self._places, value)
        return keys[:, :, : self.reach], values[:, :, : self.reach]
