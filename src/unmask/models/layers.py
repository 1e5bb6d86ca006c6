"""The parts of the networks: embeddings, norms, a block, the output layer.

There are no buffers: everything that is not learnt is computed in the pass.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from unmask.models.attention import (
    AttentionMask,
    KeyValueCache,
    Rotary,
    attend,
    attend_at,
    normalise,
    normalise_queries_and_keys,
)
from unmask.models.config import TransformerConfig

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


TIME_FEATURES = 256


class TokenEmbedding(nn.Module):
    """One vector a token: ids [B, L] to [B, L, D]."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(D)."""
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.embedding(input_ids, self.embedding)


class LayerNorm(nn.Module):
    """Layer normalisation computed in float32 (or finer) whatever the dtype of its input, which the output keeps."""

    def __init__(self, hidden_size: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The plain normalisation."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, eps=1e-5)
        exact = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(exact)
        return F.layer_norm(x.to(exact), self.weight.shape, self.weight.to(exact), bias, eps=1e-5).to(x.dtype)


class ZeroLinear(nn.Linear):
    """A linear map that starts at zero, so that the branch behind it starts silent."""

    def reset_parameters(self) -> None:
        """Zero weight and bias."""
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class TimestepEmbedder(nn.Module):
    """sigma [B] to a vector [B, C]: sinusoidal features, cosines first, then two linear maps."""

    def __init__(self, cond_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(TIME_FEATURES, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim))

    def forward(self, sigma: Tensor) -> Tensor:
        half = TIME_FEATURES // 2
        frequency = torch.exp(-math.log(10_000) * torch.arange(half, dtype=torch.float32, device=sigma.device) / half)
        angle = sigma.float()[:, None] * frequency
        features = torch.cat((angle.cos(), angle.sin()), dim=-1)
        return self.mlp(features.to(next(self.parameters()).dtype))


class Modulation(NamedTuple):
    """What the conditioning does to one branch, each [B or 1, 1, D]."""

    shift: Tensor
    scale: Tensor
    gate: Tensor


def modulate(x: Tensor, modulation: Modulation | None) -> Tensor:
    """Scale and shift a normalised x [B, L, D]; without a modulation, x itself."""
    return x if modulation is None else x * (1 + modulation.scale) + modulation.shift


def gated(x: Tensor, modulation: Modulation | None) -> Tensor:
    """Weigh a branch x [B, L, D] on its way into the residual stream; without a modulation, x itself."""
    return x if modulation is None else modulation.gate * x


def rows_at(x: Tensor, positions: Tensor) -> Tensor:
    """[B, K, D] the rows of x [B, L, D] at positions [B, K]."""
    return x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[-1]))


class Gelu(nn.Module):
    """The tanh form of GELU. x sigmoid(2 u) is the same as x (1 + tanh u) / 2, and compiled it is twice as fast."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return F.gelu(x, approximate="tanh")
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


class Mlp(nn.Sequential):
    """Linear, GELU, linear. Compiled for inference in bf16 on a GPU the first two are one product."""

    def forward(self, x: Tensor) -> Tensor:
        if not self._fuses(x):
            return super().forward(x)
        first: Any = self[0]
        inner = torch._addmm_activation(first.bias, x.flatten(0, -2), first.weight.t(), use_gelu=True)
        return self[2](inner.unflatten(0, x.shape[:-1]))

    def _fuses(self, x: Tensor) -> bool:
        """Whether the product's own kernel may apply the GELU: its gradient has no kernel, an adapter no product."""
        fast = x.is_cuda and torch.compiler.is_compiling() and not torch.is_grad_enabled()
        return fast and type(self[0]) is nn.Linear and x.dtype == self[0].weight.dtype == torch.bfloat16


class Block(GradientCheckpointingLayer):
    """One transformer block: attention, then an MLP, each normalised before and added to the residual stream.

    With ``cond_dim`` a conditioning vector modulates both branches (adaLN-zero) and the norms have no bias. Without it
    the norms have biases, and the two output projections start at zero in the place of the gates.
    """

    def __init__(self, config: TransformerConfig, layer: int, cond_dim: int | None) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.mlp_ratio * config.hidden_size
        out_linear = ZeroLinear if cond_dim is None else nn.Linear
        self.layer = layer
        self.heads = config.num_attention_heads
        self.qk_norm = config.qk_norm
        self.norm1 = LayerNorm(width, bias=cond_dim is None)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = out_linear(width, width, bias=False)
        self.norm2 = LayerNorm(width, bias=cond_dim is None)
        self.mlp = Mlp(nn.Linear(width, inner), Gelu(), out_linear(inner, width))
        self.dropout = Dropout(config.dropout)
        self.adaLN_modulation = None if cond_dim is None else ZeroLinear(cond_dim, 6 * width)

    def forward(
        self,
        x: Tensor,
        cond: Tensor | None,
        rotary: Rotary,
        scope: AttentionMask,
        past_key_values: KeyValueCache | None = None,
        positions: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> Tensor:
        """The residual stream [B, L, D] after this block; ``cond`` is [B or 1, C], or None when not conditioned.

        With positions [B, K] those rows alone, [B, K, D]: what stands elsewhere is only looked at. ``seeds`` [2, 2]
        make the masks of dropout in the two branches; without them torch does.
        """
        if positions is not None:
            return self._at(positions, x, cond, rotary, scope, seeds)
        for_attention, for_mlp = self._modulations(cond)
        qkv = self.attn_qkv(modulate(self.norm1(x), for_attention)).unflatten(-1, (3, self.heads, -1))
        if self.qk_norm:
            qkv = normalise_queries_and_keys(qkv)
        attended = attend(qkv, rotary, scope, past_key_values, self.layer)
        return self._rest(x, attended, for_attention, for_mlp, seeds)

    def _at(
        self,
        positions: Tensor,
        x: Tensor,
        cond: Tensor | None,
        rotary: Rotary,
        scope: AttentionMask,
        seeds: Tensor | None,
    ) -> Tensor:
        for_attention, for_mlp = self._modulations(cond)
        normed = modulate(self.norm1(x), for_attention)
        for_queries, for_rest = self.attn_qkv.weight.tensor_split([normed.shape[-1]])
        query = F.linear(rows_at(normed, positions), for_queries).unflatten(-1, (self.heads, -1))
        key_value = F.linear(normed, for_rest).unflatten(-1, (2, self.heads, -1))
        if self.qk_norm:
            query, key_value = normalise(query), torch.stack((normalise(key_value[:, :, 0]), key_value[:, :, 1]), dim=2)
        attended = attend_at(query, key_value, positions, rotary, scope)
        return self._rest(rows_at(x, positions), attended, for_attention, for_mlp, seeds)

    def _rest(
        self,
        x: Tensor,
        attended: Tensor,
        for_attention: Modulation | None,
        for_mlp: Modulation | None,
        seeds: Tensor | None,
    ) -> Tensor:
        """What happens to each position by itself once attention has mixed them."""
        first, second = (None, None) if seeds is None else seeds.unbind()
        x = x + gated(self.dropout(self.attn_out(attended), first), for_attention)
        return x + gated(self.dropout(self.mlp(modulate(self.norm2(x), for_mlp)), second), for_mlp)

    def _modulations(self, cond: Tensor | None) -> tuple[Modulation | None, Modulation | None]:
        if self.adaLN_modulation is None:
            return None, None
        parts = self.adaLN_modulation(cond)[:, None].chunk(6, dim=-1)
        return Modulation(*parts[:3]), Modulation(*parts[3:])


class OutputLayer(nn.Module):
    """The final norm, and the projection to the vocabulary, which is only made where it is asked for."""

    def __init__(self, config: TransformerConfig, cond_dim: int | None) -> None:
        super().__init__()
        self.norm_final = LayerNorm(config.hidden_size, bias=cond_dim is None)
        self.linear = ZeroLinear(config.hidden_size, config.vocab_size)
        self.adaLN_modulation = None if cond_dim is None else ZeroLinear(cond_dim, 2 * config.hidden_size)

    def normalise(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """The last state of the residual stream [B, L, D] to the rows that the projection takes."""
        x = self.norm_final(x)
        if self.adaLN_modulation is None:
            return x
        shift, scale = self.adaLN_modulation(cond)[:, None].chunk(2, dim=-1)
        return x * (1 + scale) + shift

    def bias(self, closed_token: int | None) -> Tensor:
        """[V] the bias of the projection; the closed token's is minus infinity, so that its probability is 0."""
        bias: Tensor = self.linear.bias
        if closed_token is None:
            return bias
        return bias.masked_fill(torch.arange(bias.shape[0], device=bias.device) == closed_token, -math.inf)
