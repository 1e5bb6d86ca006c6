"""The baseline: masked diffusion written plainly in PyTorch, dense but without avoidable work.

It computes logits [B, L, V] at every position and `F.cross_entropy` on them. Ancestral sampling reuses its
probabilities while the canvas does not change. There are no float64 operations and no avoidable copies or
synchronisations. Parameters have the names of unmask's DiT, so that weights can be copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100


class Block(nn.Module):
    """A pre-norm transformer block with rotary attention."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.mlp_ratio * config.hidden_size
        self.heads = config.num_attention_heads
        self.norm1 = nn.LayerNorm(width)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, width))
        self.dropout = nn.Dropout(config.dropout)
        for parameter in (self.attn_out.weight, *self.mlp[2].parameters()):
            nn.init.zeros_(parameter)

    def forward(self, x_BLD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = self.attn_qkv(self.norm1(x_BLD)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = qkv.unbind(2)
        mixed = F.scaled_dot_product_attention(rotate(query, cos, sin), rotate(key, cos, sin), value)
        x_BLD = x_BLD + self.dropout(self.attn_out(mixed.transpose(1, 2).flatten(2)))
        return x_BLD + self.dropout(self.mlp(self.norm2(x_BLD)))


class PlainDiT(nn.Module):
    """The unconditioned denoiser, from ids [B, L] to logits [B, L, V]; the logit of the mask is minus infinity."""

    cos: Tensor
    sin: Tensor
    mask_bias: Tensor

    def __init__(self, config: Any, length: int) -> None:
        """Build the network of the sizes in a `DiTConfig`."""
        super().__init__()
        self.mask_token_id = config.mask_token_id
        vocab_size, width = config.vocab_size, config.hidden_size
        embedding = torch.empty(vocab_size, width).uniform_(-(width**-0.5), width**-0.5)
        self.vocab_embed = nn.ParameterDict({"embedding": nn.Parameter(embedding)})
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.output_layer = nn.ModuleDict({"norm_final": nn.LayerNorm(width), "linear": nn.Linear(width, vocab_size)})
        for parameter in self.output_layer["linear"].parameters():
            nn.init.zeros_(parameter)
        cos, sin = rotary(length, width // config.num_attention_heads)
        mask_bias = torch.zeros(vocab_size)
        mask_bias[self.mask_token_id] = -math.inf
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("mask_bias", mask_bias, persistent=False)

    def forward(self, ids_BL: Tensor) -> Tensor:
        length = ids_BL.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x_BLD = F.embedding(ids_BL, self.vocab_embed["embedding"])
        for block in self.blocks:
            x_BLD = block(x_BLD, cos, sin)
        x_BLD = self.output_layer["norm_final"](x_BLD)
        head = cast(nn.Linear, self.output_layer["linear"])
        return F.linear(x_BLD, head.weight, head.bias + self.mask_bias)

    def loss(self, ids_BL: Tensor, t_B: Tensor, u_BL: Tensor) -> Tensor:
        """Return the bound in nats per token at times t under the log-linear schedule; tokens with u < t are masked."""
        masked_BL = u_BL < t_B[:, None]
        logits_BLV = self(ids_BL.masked_fill(masked_BL, self.mask_token_id))
        targets_BL = ids_BL.masked_fill(~masked_BL, IGNORED)
        nll = F.cross_entropy(
            logits_BLV.flatten(0, 1), targets_BL.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(u_BL)
        return (nll / t_B[:, None]).sum() / ids_BL.numel()


def rotary(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [L, d/2] of the rotary angles."""
    frequency = 10_000.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
    angle = torch.arange(length)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d/2) of x [B, H, L, d]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def draw_noise(ids_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Draw stratified times [B] in (0, 1) and uniform numbers [B, L]."""
    batch, device = ids_BL.shape[0], ids_BL.device
    t_B = (torch.rand((), device=device) + torch.arange(batch, device=device) / batch) % 1
    return t_B.clamp_min(1e-6), torch.rand(ids_BL.shape, device=device)


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Multiply matrices in this precision."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)


class PlainTrainer:
    """Fused AdamW with gradient clipping and an exponential moving average of the weights."""

    def __init__(self, network: PlainDiT, precision: torch.dtype, ema: float = 0.9999) -> None:
        self.network = network.train()
        self.precision = precision
        self.parameters: list[Tensor] = list(network.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-4, weight_decay=0.0, fused=True)
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.ema = ema

    def step(self, ids_BL: Tensor) -> None:
        """Train on clean rows that are on the device."""
        with autocast(ids_BL.device, self.precision):
            loss = self.network.loss(ids_BL, *draw_noise(ids_BL))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1.0 - self.ema)


@torch.inference_mode()
def plain_sample(
    network: PlainDiT, batch: int, length: int, steps: int, precision: torch.dtype
) -> Iterator[tuple[Tensor, int]]:
    """Run ancestral sampling, yielding the canvas [B, L] and the network calls so far, before the first step too.

    With t = i/T and s = (i-1)/T a masked position is revealed with probability (t - s)/t = 1/i. Tokens are drawn at all
    positions by inverting the cumulative distribution, which is cheaper than Gumbel noise for every token. The network
    is called only if the canvas has changed.
    """
    mask, device = network.mask_token_id, network.cos.device
    z_BL = torch.full((batch, length), mask, device=device)
    calls, changed = 0, True
    yield z_BL, calls
    for i in range(steps, 0, -1):
        if changed:
            with autocast(device, precision):
                cdf_BLV = torch.softmax(network(z_BL), dim=-1, dtype=torch.float32).cumsum_(-1)
            calls += 1
        chosen_BL1 = torch.rand((batch, length, 1), device=device) * cdf_BLV[..., -1:]
        drawn_BL = torch.searchsorted(cdf_BLV, chosen_BL1).squeeze(-1)
        revealed_BL = (z_BL == mask) & (torch.rand((batch, length), device=device) * i < 1)
        new_BL = torch.where(revealed_BL, drawn_BL, z_BL)
        changed = not torch.equal(new_BL, z_BL)
        z_BL = new_BL
        yield z_BL, calls


@torch.inference_mode()
def plain_bound(network: PlainDiT, rows_NL: Tensor, batch: int, precision: torch.dtype) -> float:
    """Return the bound of rows in host memory in nats per token, with one noise draw per row."""
    device = network.cos.device
    nats = torch.zeros((), device=device)
    for rows_BL in rows_NL.split(batch):
        ids_BL = rows_BL.to(device, non_blocking=True)
        with autocast(device, precision):
            nats += network.loss(ids_BL, *draw_noise(ids_BL)) * ids_BL.numel()
    return float(nats) / rows_NL.numel()
