"""The layers of the networks: norms, embeddings, dropout, MLP, transformer block, output layer and planner head.

There are no buffers: everything that is not learned is computed in the forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from unmask.errors import UnmaskError
from unmask.models.attention import AttentionMask, Rotary, StaticCache, attend, attend_at, rotary_angles
from unmask.models.config import NetworkConfig, TransformerConfig

TIME_FEATURES = 256
DROPOUT_LEVELS = 1 << 16
MIN_COMPLEMENT = 1e-6
"""The smallest 1 - p that float32 logits distinguish from 0."""


class LayerNorm(nn.Module):
    """Layer normalisation in float32 (or finer); the output has the dtype of the input."""

    def __init__(self, hidden_size: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, eps=1e-5)
        exact = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(exact)
        return F.layer_norm(x.to(exact), self.weight.shape, self.weight.to(exact), bias, eps=1e-5).to(x.dtype)


def rms_norm(x: Tensor) -> Tensor:
    """x [..., d] scaled to a mean square of 1, without parameters."""
    return F.rms_norm(x, x.shape[-1:]).to(x.dtype)


class ZeroLinear(nn.Linear):
    """A linear layer that starts at zero, so that its branch does not contribute at first."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


# ---- embeddings -----------------------------------------------------------------------------------------------------


class TokenEmbedding(nn.Module):
    """Ids [B, L] to vectors [B, L, D]; weights start uniform in +-1/sqrt(D)."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(vocab_size, hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.embedding, a=math.sqrt(5))

    @property
    def weight(self) -> nn.Parameter:
        """The parameter under the name that it has in `nn.Embedding`."""
        return self.embedding

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.embedding(input_ids, self.embedding)


class PositionEmbedding(nn.Module):
    """Sinusoids of the absolute position, [L, D], with a learned gain per channel that starts at zero."""

    def __init__(self, hidden_size: int, base: float) -> None:
        super().__init__()
        self.base = base
        self.gain = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.gain)

    def forward(self, length: int) -> Tensor:
        rotary = rotary_angles(length, len(self.gain), self.base, self.gain.device)
        return self.gain * torch.cat((rotary.cos[:, 0, 0], rotary.sin[:, 0, 0]), dim=-1)


class LearnedPositions(nn.Module):
    """A learned vector [D] per position, [L, D] for the first L of them."""

    def __init__(self, max_length: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, length: int) -> Tensor:
        return self.weight[:length]


class TimestepEmbedder(nn.Module):
    """sigma [B] to a vector [B, C]: sinusoidal features, cosines first, then two linear layers."""

    def __init__(self, cond_dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(TIME_FEATURES, cond_dim), nn.SiLU(), nn.Linear(cond_dim, cond_dim))

    def forward(self, sigma: Tensor) -> Tensor:
        half = TIME_FEATURES // 2
        frequency = torch.exp(-math.log(10_000) * torch.arange(half, dtype=torch.float32, device=sigma.device) / half)
        angle = sigma.float()[:, None] * frequency
        features = torch.cat((angle.cos(), angle.sin()), dim=-1)
        return self.mlp(features.to(next(self.parameters()).dtype))


# ---- dropout --------------------------------------------------------------------------------------------------------


class Dropout(nn.Module):
    """In training, zero each value with probability p and scale the others up.

    With two seeds the mask is a hash of the seeds and the index of each value, which compiled code recomputes in the
    backward pass instead of storing it; torch's dropout stores its mask and runs ten rounds of Philox per value. On a
    CPU four values share one word of torch's generator, which takes a third of the time of one draw per value.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor, seeds: Tensor | None = None) -> Tensor:
        if not self.training or not self.p:
            return x
        if seeds is not None and self.p < 1:
            return torch.where(hashed_dropout_mask(x, self.p, seeds), x * (1.0 / (1.0 - self.p)), 0.0)
        if x.device.type == "cpu" and self.p < 1:
            return cpu_dropout(x, self.p)
        return F.dropout(x, self.p)


def draw_dropout_seeds(*shape: int, device: torch.device) -> Tensor:
    """[*shape, 2] seeds from torch's generator.

    Call it outside compiled code: a compiler may recompute a `randint` in the backward pass and draw other seeds.
    """
    return torch.randint(-(1 << 31), 1 << 31, (*shape, 2), device=device).to(torch.int32)


def hashed_dropout_mask(x: Tensor, p: float, seeds: Tensor) -> Tensor:
    """A mask of the shape of x from two seeds, True with probability 1 - p.

    The hash is the bijection of `unmask.random` in wrapping 32-bit arithmetic, with logical shifts.
    """
    index = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape)
    word = (index ^ seeds[0]) * (0x9E3779B1 - (1 << 32)) + seeds[1]
    word = (word ^ ((word >> 16) & 0xFFFF)) * 0x7FEB352D
    word = (word ^ ((word >> 15) & 0x1FFFF)) * (0x846CA68B - (1 << 32))
    word = word ^ ((word >> 16) & 0xFFFF)
    return word & 0x7FFFFFFF >= int(p * 2**31)


def cpu_dropout(x: Tensor, p: float) -> Tensor:
    """Dropout with 16 random bits per value: p is rounded to 2^-16, and the scale is that of the rounded p."""
    dropped = min(round(p * DROPOUT_LEVELS), DROPOUT_LEVELS - 1)
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(torch.iinfo(torch.int64).min, None)
    level = words.view(torch.int16)[: x.numel()].view(x.shape)
    return x * (level >= dropped - DROPOUT_LEVELS // 2).to(x.dtype).mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped))


# ---- rows of tokens -------------------------------------------------------------------------------------------------


def check_length(length: int, max_length: int) -> None:
    """Raise `UnmaskError` if a sequence is longer than a network takes."""
    if length > max_length:
        raise UnmaskError(
            f"A sequence has {length} tokens and this network takes at most {max_length}; generate longer text in "
            "windows (semi-autoregressive sampling), score it in blocks, or train a network with a larger max_length."
        )


def check_input(input_ids: Tensor, attention_mask: Tensor | None, max_length: int, past: int = 0) -> None:
    """Raise `UnmaskError` if ids [B, L] after `past` cached tokens are too long, or the shape of their mask differs."""
    batch, length = input_ids.shape[0], past + input_ids.shape[1]
    check_length(length, max_length)
    if attention_mask is not None and attention_mask.shape != (batch, length):
        raise UnmaskError(
            f"attention_mask must have the shape {(batch, length)}, one entry per token, "
            f"got {tuple(attention_mask.shape)}."
        )


def rows_at(x: Tensor, positions: Tensor) -> Tensor:
    """[B, K, D] the rows of x [B, L, D] at positions [B, K]."""
    return x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[-1]))


def continue_with_masks(input_ids: Tensor, attention_mask: Tensor | None, length: int, mask_token_id: int) -> Tensor:
    """Rows [B, L] with masks in place of padding, continued with masks to `length` tokens: the text may go on there."""
    if attention_mask is not None:
        input_ids = input_ids.masked_fill(~attention_mask.bool(), mask_token_id)
    return F.pad(input_ids, (0, max(0, length - input_ids.shape[1])), value=mask_token_id)


def shifted_rows(
    run: Callable[[Tensor, Tensor | None, Tensor | None], Tensor],
    begin_token_id: int | None,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    positions: Tensor | None,
) -> Tensor:
    """Hidden states [B, L, D], or [B, K, D] at positions [B, K], if position i - 1 of the network predicts token i.

    ``run(input_ids, attention_mask, positions)`` computes hidden states. The begin token is put before ``input_ids``
    [B, L]; without one, position 0 is predicted from its own hidden state.
    """
    length = input_ids.shape[1]
    if begin_token_id is not None:
        input_ids = F.pad(input_ids, (1, 0), value=begin_token_id)
        attention_mask = None if attention_mask is None else F.pad(attention_mask, (1, 0), value=1)
        rows = run(input_ids, attention_mask, positions)  # row i is that of the token before position i
        return rows[:, :length]
    if positions is not None:
        return run(input_ids, attention_mask, (positions - 1).clamp_min(0))
    rows = run(input_ids, attention_mask, None)
    return torch.cat((rows[:, :1], rows[:, :-1]), dim=1)


# ---- transformer block ----------------------------------------------------------------------------------------------


class Gelu(nn.Module):
    """GELU with tanh. Compiled, it is x sigmoid(2 u) instead of the equal x (1 + tanh u) / 2, and twice as fast."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return F.gelu(x, approximate="tanh")
        return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


class Mlp(nn.Sequential):
    """Linear, GELU, linear. Compiled for bf16 inference on a GPU, one kernel computes the first two."""

    def forward(self, x: Tensor) -> Tensor:
        first: Any = self[0]
        compiled = x.is_cuda and torch.compiler.is_compiling() and not torch.is_grad_enabled()
        # the fused kernel has no gradient and ignores LoRA adapters
        if not (compiled and type(first) is nn.Linear and x.dtype == first.weight.dtype == torch.bfloat16):
            return super().forward(x)
        inner = torch._addmm_activation(first.bias, x.flatten(0, -2), first.weight.t(), use_gelu=True)
        return self[2](inner.unflatten(0, x.shape[:-1]))


class Modulation(NamedTuple):
    """Shift, scale and gate of one branch (adaLN-zero), each [B or 1, 1, D]."""

    shift: Tensor
    scale: Tensor
    gate: Tensor


def modulate(x: Tensor, modulation: Modulation | None) -> Tensor:
    return x if modulation is None else x * (1 + modulation.scale) + modulation.shift


def apply_gate(x: Tensor, modulation: Modulation | None) -> Tensor:
    return x if modulation is None else modulation.gate * x


class Block(GradientCheckpointingLayer):
    """A pre-norm transformer block: attention, then an MLP.

    With ``cond_dim`` a conditioning vector modulates both branches (adaLN-zero) and the norms have no bias. Without it
    the norms have biases, and the two output projections start at zero in place of the gates.
    """

    branches: ClassVar[int] = 2
    """Residual branches, each with a dropout."""

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
        mask: AttentionMask,
        past_key_values: Cache | StaticCache | None = None,
        positions: Tensor | None = None,
        seeds: Tensor | None = None,
        between: Callable[[Tensor, Tensor | None], Tensor] | None = None,
    ) -> Tensor:
        """The residual stream [B, L, D] after this block; ``cond`` is [B or 1, C], or None without conditioning.

        With positions [B, K], compute only those rows, [B, K, D]; the others are only attended to. ``seeds``
        [branches, 2] are the dropout seeds of the branches; without them dropout uses torch's generator. A subclass
        adds a third branch with ``between``, a function of the residual stream after attention and of the seeds [2].
        """
        for_attention = for_mlp = None
        if self.adaLN_modulation is not None:
            parts = self.adaLN_modulation(cond)[:, None].chunk(6, dim=-1)
            for_attention, for_mlp = Modulation(*parts[:3]), Modulation(*parts[3:])
        normed = modulate(self.norm1(x), for_attention)
        if positions is None:
            attended = self._attend(normed, rotary, mask, past_key_values)
        else:
            attended = self._attend_at(normed, positions, rotary, mask)
            x = rows_at(x, positions)
        first, second, *third = [None] * self.branches if seeds is None else seeds.unbind()
        x = x + apply_gate(self.dropout(self.attn_out(attended), first), for_attention)
        if between is not None:
            x = between(x, *third)
        return x + apply_gate(self.dropout(self.mlp(modulate(self.norm2(x), for_mlp)), second), for_mlp)

    def _attend(
        self, x: Tensor, rotary: Rotary, mask: AttentionMask, past_key_values: Cache | StaticCache | None
    ) -> Tensor:
        qkv = self.attn_qkv(x).unflatten(-1, (3, self.heads, -1))
        if self.qk_norm:
            qkv = torch.cat((rms_norm(qkv[:, :, :2]), qkv[:, :, 2:]), dim=2)
        return attend(qkv, rotary, mask, past_key_values, self.layer)

    def _attend_at(self, x: Tensor, positions: Tensor, rotary: Rotary, mask: AttentionMask) -> Tensor:
        query_weight, key_value_weight = self.attn_qkv.weight.tensor_split([x.shape[-1]])
        query = F.linear(rows_at(x, positions), query_weight)
        query, key_value = self._split_heads(query, F.linear(x, key_value_weight))
        return attend_at(query, key_value, positions, rotary, mask)

    def _split_heads(self, query: Tensor, key_value: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [B, K, H, d] of [B, K, D], and keys and values [B, S, 2, H, d] of [B, S, 2 D]."""
        query = query.unflatten(-1, (self.heads, -1))
        key_value = key_value.unflatten(-1, (2, self.heads, -1))
        if self.qk_norm:
            query, key_value = rms_norm(query), torch.stack((rms_norm(key_value[:, :, 0]), key_value[:, :, 1]), dim=2)
        return query, key_value


# ---- heads ----------------------------------------------------------------------------------------------------------


class OutputLayer(nn.Module):
    """The final norm, and the weights of the projection to the vocabulary, which the caller applies."""

    def __init__(self, config: NetworkConfig, cond_dim: int | None) -> None:
        super().__init__()
        self.norm_final = LayerNorm(config.hidden_size, bias=cond_dim is None)
        self.linear = ZeroLinear(config.hidden_size, config.vocab_size)
        self.adaLN_modulation = None if cond_dim is None else ZeroLinear(cond_dim, 2 * config.hidden_size)

    def normalise(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """The residual stream [B, L, D] to the rows that the projection takes."""
        x = self.norm_final(x)
        if self.adaLN_modulation is None:
            return x
        shift, scale = self.adaLN_modulation(cond)[:, None].chunk(2, dim=-1)
        return x * (1 + scale) + shift


def exclude_token(logits: Tensor, token: int | None) -> Tensor:
    """Logits (or a bias) [..., V] with -inf at a token, so that its probability is 0; None excludes no token."""
    if token is None:
        return logits
    return logits.masked_fill(torch.arange(logits.shape[-1], device=logits.device) == token, -math.inf)


def product_dtype(weight: Tensor) -> torch.dtype:
    """The dtype of matrix products with a weight: autocast's where it is enabled, else that of the weight."""
    device = weight.device.type
    casts = device != "meta" and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if casts else weight.dtype


class PlannerHead(nn.Module):
    """The log-odds that the most likely token is right: those of the network plus a learned correction.

    The correction is a function of the hidden row and these log-odds. It starts at zero: an untrained planner orders
    positions by confidence.
    """

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(hidden_size, bias=True)
        self.inner = nn.Linear(hidden_size, width)
        self.gelu = Gelu()
        self.outer = ZeroLinear(width + 1, 1)

    def forward(self, rows: Tensor, log_top: Tensor) -> Tensor:
        """Hidden states [..., D] and the log-probability [...] of their most likely tokens to log-odds [...]."""
        base = log_odds(log_top.float())
        features = torch.cat([self.gelu(self.inner(self.norm(rows))).float(), base[..., None]], dim=-1)
        return base + self.outer(features)[..., 0].float()


def log_odds(log_p: Tensor) -> Tensor:
    """log p - log(1 - p) from log p; always finite."""
    return log_p - torch.log((-torch.expm1(log_p)).clamp_min(MIN_COMPLEMENT))
