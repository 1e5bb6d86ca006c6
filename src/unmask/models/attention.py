"""Attention: rotary embeddings, masks, scaled dot-product attention and the static key-value cache."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.cache_utils import Cache

from unmask.random import Purpose, uniform

# ---- rotary embeddings ----------------------------------------------------------------------------------------------


class Rotary(NamedTuple):
    """Cosine and sine of the angle of every position, float32 [L, 3, 1, d/2], computed once and used by all blocks.

    The three entries are for queries, keys and values; the angle of the values is 0.
    """

    cos: Tensor
    sin: Tensor


def rotary_frequencies(head_dim: int, base: float, device: torch.device) -> Tensor:
    """[head_dim / 2] the angle by which each pair of channels turns per position."""
    return 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


def rotary_angles(length: int, head_dim: int, base: float, device: torch.device, offset: int | Tensor = 0) -> Rotary:
    """The rotary table of positions offset..offset+length-1."""
    frequency = rotary_frequencies(head_dim, base, device)
    position = offset + torch.arange(length, dtype=torch.float32, device=device)
    angle = position[:, None] * frequency
    angles = torch.stack((angle, angle, torch.zeros_like(angle)), dim=1)[:, :, None]
    return Rotary(angles.cos(), angles.sin())


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., d] with each pair of channels (i, i + d/2) rotated, computed in float32."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _split_and_rotate(qkv: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, H, L, d] of qkv [B, L, 3, H, d], the first two rotated.

    Compiled for training, one kernel copies the values too: a view of them would keep all of qkv alive until the
    backward pass.
    """
    if torch.is_grad_enabled() and torch.compiler.is_compiling():
        query, key, value = apply_rotary(qkv, *rotary).transpose(1, 3).unbind(2)
        return query, key, value
    query, key = apply_rotary(qkv[:, :, :2], rotary.cos[:, :2], rotary.sin[:, :2]).transpose(1, 3).unbind(2)
    return query, key, qkv[:, :, 2].transpose(1, 2)


# ---- masks ----------------------------------------------------------------------------------------------------------


class AttentionMask(NamedTuple):
    """`mask` [B or 1, 1, Q or 1, K] is True where a query sees a key.

    Without a mask a query sees all keys or, if `is_causal`, those up to its own position.
    """

    mask: Tensor | None
    is_causal: bool


def bidirectional_mask(attention_mask: Tensor | None) -> AttentionMask:
    """Every query sees every key that is not padding; attention_mask is [B, L], or None without padding.

    In a row of padding alone queries see all keys, so that its unused output stays finite.
    """
    if attention_mask is None:
        return AttentionMask(None, is_causal=False)
    keys = attention_mask.bool()
    keys = keys | ~keys.any(dim=1, keepdim=True)
    return AttentionMask(keys[:, None, None, :], is_causal=False)


def causal_mask(length: int, past: int, attention_mask: Tensor | None, device: torch.device) -> AttentionMask:
    """Queries past..past+length-1 see themselves and earlier keys, except for padding [B, past + length]."""
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


class AttentionAnnealing:
    """The attention mask of a causal network that becomes bidirectional while it is trained.

    In step s each query sees each later key with probability s / `steps`, and from step `steps` on all keys. The draws
    depend on seed, step, query and key alone. The step is a tensor, so that a recorded CUDA graph reads its new value.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._seed = 0
        self._step: Tensor | None = None
        self._over = True

    def seek(self, step: int, seed: int, device: torch.device) -> None:
        """Set the training step, before each step and outside of captured code."""
        if self._step is None:
            self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._step.fill_(step)
        self._seed, self._over = seed, step >= self.steps

    def mask(self, length: int, attention_mask: Tensor | None) -> AttentionMask:
        """The mask of `length` tokens in this step; attention_mask is [B, length], or None without padding."""
        if self._over or self._step is None:
            return bidirectional_mask(attention_mask)
        index = torch.arange(length, device=self._step.device)
        draw = uniform(self._seed, Purpose.ATTENTION, self._step, index[:, None], index)
        seen = ((index <= index[:, None]) | (draw < self._step / self.steps))[None, None]
        if attention_mask is not None:
            seen = (seen & attention_mask.bool()[:, None, None, :]) | (index == index[:, None])
        return AttentionMask(seen, is_causal=False)


# ---- static cache ---------------------------------------------------------------------------------------------------

STRIDE = {"cpu": 16, "cuda": 256}
"""`StaticCache` returns a multiple of this many keys. On a GPU each multiple has its own CUDA graph."""


class StaticCache:
    """A key-value cache with memory for `capacity` tokens, written at a position that is a tensor.

    Shapes do not change from one token to the next, so a step can be captured as a CUDA graph. Call `seek` with the
    position of the next tokens before each pass, outside the captured code.
    """

    def __init__(self, layers: int, capacity: int, device: torch.device) -> None:
        self.layers = layers
        self.capacity = capacity
        self.stride = STRIDE.get(device.type, 256)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.reach = 0
        """The number of keys that `update` returns; those after a query are masked."""
        self._positions = self.position
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def seek(self, position: int, length: int) -> None:
        """Set the position of the next `length` tokens."""
        self.position.fill_(position)
        self.reach = min(self.capacity, -(-(position + length) // self.stride) * self.stride)

    def begin_pass(self, length: int) -> AttentionMask:
        """Start a pass over `length` tokens and return its mask."""
        device = self.position.device
        self._positions = self.position + torch.arange(length, device=device)
        seen = torch.arange(self.reach, device=device) <= self._positions[:, None]
        return AttentionMask(seen[None, None], is_causal=False)

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Store the keys and values [B, H, L, d] of a layer and return all within reach, [B, H, reach, d]."""
        if self._keys is None or self._values is None:
            shape = (self.layers, *key.shape[:2], self.capacity, key.shape[3])
            self._keys, self._values = key.new_zeros(shape), value.new_zeros(shape)
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(2, self._positions, key)
        values.index_copy_(2, self._positions, value)
        return keys[:, :, : self.reach], values[:, :, : self.reach]


# ---- attention ------------------------------------------------------------------------------------------------------


def attend(
    qkv: Tensor,
    rotary: Rotary,
    mask: AttentionMask,
    past_key_values: Cache | StaticCache | None = None,
    layer: int = 0,
) -> Tensor:
    """Attention of one block: qkv [B, L, 3, H, d] to [B, L, H * d].

    With a cache, the new keys and values are stored under ``layer`` and the queries see the earlier ones too.
    """
    query, key, value = _split_and_rotate(qkv, rotary)
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, layer)
    with _without_cudnn(query):
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.mask, is_causal=mask.is_causal)
    return mixed.transpose(1, 2).flatten(2)


def attend_at(query: Tensor, key_value: Tensor, positions: Tensor, rotary: Rotary, mask: AttentionMask) -> Tensor:
    """Attention of the queries at positions [B, K] only: [B, K, H, d] to [B, K, H * d].

    ``key_value`` [B, S, 2, H, d] are the keys and values of the first positions of the rotary table, usually all.
    """
    size = key_value.shape[1]
    query = apply_rotary(query, rotary.cos[:, 0][positions], rotary.sin[:, 0][positions]).transpose(1, 2)
    key = apply_rotary(key_value[:, :, 0], rotary.cos[:size, 1], rotary.sin[:size, 1]).transpose(1, 2)
    value = key_value[:, :, 1].transpose(1, 2)
    with _without_cudnn(query):
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.mask)
    return mixed.transpose(1, 2).flatten(2)


def _without_cudnn(query: Tensor) -> AbstractContextManager[Any]:
    """Avoid cuDNN's kernel for lengths that are not a multiple of 128, where its backward pass can be NaN.

    pytorch/pytorch#196678; it also happens without a mask, on an H200 with torch 2.11 in bf16 at length 64.
    """
    if not query.is_cuda or query.shape[-2] % 128 == 0:
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
