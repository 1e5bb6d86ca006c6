"""The key-value cache of left-to-right sampling: allocated once, written at a place that is a tensor.

No shape changes from one token to the next, so that a step can be captured once as a CUDA graph and replayed.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


class Rotary(NamedTuple):
    """Cosine and sine of every position's angles, float32 [L, 3, 1, d/2], made once per pass and used by all blocks.

    Queries and keys turn by them; the values' angle is 0.
    """

    cos: Tensor
    sin: Tensor


class AttentionMask(NamedTuple):
    """Which keys a query may see: a boolean mask [B or 1, 1, Q or 1, K]; None for all, or all before where causal."""

    mask: Tensor | None
    is_causal: bool


class KeyValueCache(Protocol):
    """A cache, as a block sees it: transformers' own, or `StaticCache`."""

    def update(self, key: Tensor, value: Tensor, layer: int, /) -> tuple[Tensor, Tensor]:
        """Keep the new keys and values [B, H, L, d] of a layer; all that the queries look at."""


def rotary_angles(length: int, head_dim: int, base: float, device: torch.device, offset: int | Tensor = 0) -> Rotary:
    """The rotary table of positions offset..offset+length-1 for heads of width head_dim."""
    frequency = rotary_frequencies(head_dim, base, device)
    position = offset + torch.arange(length, dtype=torch.float32, device=device)
    angle = position[:, None] * frequency
    angles = torch.stack((angle, angle, torch.zeros_like(angle)), dim=1)[:, :, None]
    return Rotary(angles.cos(), angles.sin())


def rotary_frequencies(head_dim: int, base: float, device: torch.device) -> Tensor:
    """[head_dim / 2] how far each pair turns from one position to the next."""
    return 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


def waves(length: int, width: int, base: float, device: torch.device) -> Tensor:
    """[length, width] cosines, then sines, of rotary angles: what tells each position from all others."""
    rotary = rotary_angles(length, width, base, device)
    return torch.cat((rotary.cos[:, 0, 0], rotary.sin[:, 0, 0]), dim=-1)


def rotate(qkv: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, H, L, d] of qkv [B, L, 3, H, d], the first two turned by their positions' angles.

    Where a compiler makes one kernel of it, values are copied along for the backward pass, for which a view of them
    would keep all of the old qkv.
    """
    if torch.is_grad_enabled() and torch.compiler.is_compiling():
        query, key, value = turn(qkv, *rotary).transpose(1, 3).unbind(2)
        return query, key, value
    query, key = turn(qkv[:, :, :2], rotary.cos[:, :2], rotary.sin[:, :2]).transpose(1, 3).unbind(2)
    return query, key, qkv[:, :, 2].transpose(1, 2)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., d] with each pair (i, i + d/2) turned by an angle, computed in float32."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def normalise(x: Tensor) -> Tensor:
    """Heads x [..., d] with a mean square of 1."""
    return F.rms_norm(x, x.shape[-1:]).to(x.dtype)


def normalise_queries_and_keys(qkv: Tensor) -> Tensor:
    """qkv [B, L, 3, H, d] with its values as they are."""
    return torch.cat((normalise(qkv[:, :, :2]), qkv[:, :, 2:]), dim=2)


def attend(
    qkv: Tensor, rotary: Rotary, scope: AttentionMask, past_key_values: KeyValueCache | None = None, layer: int = 0
) -> Tensor:
    """Attention of one block: qkv [B, L, 3, H, d] to [B, L, H * d].

    With a cache, this block's new keys and values are added under ``layer`` and the queries see the earlier ones too.
    """
    query, key, value = rotate(qkv, rotary)
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, layer)
    with _sound_kernels(query):
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=scope.mask, is_causal=scope.is_causal)
    return mixed.transpose(1, 2).flatten(2)


def attend_at(query: Tensor, key_value: Tensor, positions: Tensor, rotary: Rotary, scope: AttentionMask) -> Tensor:
    """Attention of some queries alone: [B, K, H, d], which stand at positions [B, K], to [B, K, H * d].

    ``key_value`` [B, L, 2, H, d] are the keys and values of all positions.
    """
    query = turn(query, rotary.cos[:, 0][positions], rotary.sin[:, 0][positions]).transpose(1, 2)
    key = turn(key_value[:, :, 0], rotary.cos[:, 1], rotary.sin[:, 1]).transpose(1, 2)
    value = key_value[:, :, 1].transpose(1, 2)
    with _sound_kernels(query):
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=scope.mask)
    return mixed.transpose(1, 2).flatten(2)


def _sound_kernels(query: Tensor) -> AbstractContextManager[Any]:
    """Keep off cuDNN's kernel where its backward pass can be NaN: lengths that do not fill its tiles of 128.

    pytorch/pytorch#196678; also seen here without a mask, on an H200 with torch 2.11 in bf16 at length 64.
    """
    if not query.is_cuda or query.shape[-2] % 128 == 0:
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def bidirectional_mask(attention_mask: Tensor | None) -> AttentionMask:
    """Every query sees every key that is not a pad; attention_mask is [B, L], true at the tokens, or None for no pads.

    A row of nothing but pads sees all of them: what it yields is used by nobody, and stays finite.
    """
    if attention_mask is None:
        return AttentionMask(None, is_causal=False)
    keys = attention_mask.bool()
    keys = keys | ~keys.any(dim=1, keepdim=True)
    return AttentionMask(keys[:, None, None, :], is_causal=False)


def causal_mask(length: int, past: int, attention_mask: Tensor | None, device: torch.device) -> AttentionMask:
    """Queries past..past+length-1 see themselves and the keys before them, pads [B, past + length] excepted."""
    if attention_mask is None and past == 0:
        return AttentionMask(None, is_causal=True)
    if attention_mask is None and length == 1:
        return AttentionMask(None, is_causal=False)
    query = torch.arange(past, past + length, device=device)[:, None]
    key = torch.arange(past + length, device=device)
    if attention_mask is None:
        return AttentionMask((key <= query)[None, None], is_causal=False)
    seen = (key < query) & attention_mask.bool()[:, None, None, :]
    return AttentionMask(seen | (key == query), is_causal=False)


STRIDE = {"cpu": 16, "cuda": 256}
"""Queries look at this many keys, at twice as many, and so on: one shape for each, and on a GPU one graph."""


class StaticCache:
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

    def open(self, length: int) -> AttentionMask:
        """Begin a pass over `length` tokens; which keys they may see."""
        device = self.position.device
        self._places = self.position + torch.arange(length, device=device)
        seen = torch.arange(self.reach, device=device) <= self._places[:, None]
        return AttentionMask(seen[None, None], is_causal=False)

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keep keys and values [B, H, L, d] of a layer; all that are in reach, [B, H, reach, d]."""
        if self._keys is None or self._values is None:
            shape = (self.layers, *key.shape[:2], self.capacity, key.shape[3])
            self._keys, self._values = key.new_zeros(shape), value.new_zeros(shape)
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(2, self._places, key)
        values.index_copy_(2, self._places, value)
        return keys[:, :, : self.reach], values[:, :, : self.reach]
