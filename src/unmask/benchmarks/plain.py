"""What unmask is compared with: masked diffusion as one would write it first, in torch alone, but without waste.

Logits at every position, [B, L, V]; `F.cross_entropy`; ancestral sampling that keeps its probabilities while the canvas
stands still. Nothing is computed in float64, copied without need or waited for without need. Parameters carry the names
of unmask's own DiT, so that weights can be carried over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

IGNORED = -100


@dataclass(frozen=True)
class Shape:
    """The sizes of a network."""

    vocab_size: int
    mask_token_id: int
    length: int
    width: int
    layers: int
    heads: int
    mlp_ratio: int = 4
    dropout: float = 0.1


class Embedding(nn.Module):
    """One vector a token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        bound = shape.width**-0.5
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size, shape.width).uniform_(-bound, bound))

    def forward(self, ids_BL: Tensor) -> Tensor:
        return F.embedding(ids_BL, self.embedding)


class Block(nn.Module):
    """Attention and an MLP, each normalised before, dropped out and added."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.width, shape.mlp_ratio * shape.width
        self.heads = shape.heads
        self.norm1 = nn.LayerNorm(width)
        self.attn_qkv = nn.Linear(width, 3 * width, bias=False)
        self.attn_out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, width))
        self.dropout = nn.Dropout(shape.dropout)
        for silent in (self.attn_out, self.mlp[2]):
            for parameter in silent.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x_BLD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv = self.attn_qkv(self.norm1(x_BLD)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = qkv.unbind(2)
        mixed = F.scaled_dot_product_attention(rotate(query, cos, sin), rotate(key, cos, sin), value)
        x_BLD = x_BLD + self.dropout(self.attn_out(mixed.transpose(1, 2).flatten(2)))
        return x_BLD + self.dropout(self.mlp(self.norm2(x_BLD)))


class Output(nn.Module):
    """The last norm and the projection to the vocabulary, in which the mask has no chance."""

    closed: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(shape.width)
        self.linear = nn.Linear(shape.width, shape.vocab_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        closed = torch.zeros(shape.vocab_size)
        closed[shape.mask_token_id] = -math.inf
        self.register_buffer("closed", closed, persistent=False)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return F.linear(self.norm_final(x_BLD), self.linear.weight, self.linear.bias + self.closed)


class PlainDiT(nn.Module):
    """The unconditioned denoiser: ids [B, L] to logits [B, L, V]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.vocab_embed = Embedding(shape)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_layer = Output(shape)
        cos, sin = rotary(shape.length, shape.width // shape.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids_BL: Tensor) -> Tensor:
        length = ids_BL.shape[1]
        cos, sin = self.cos[:length], self.sin[:length]
        x_BLD = self.vocab_embed(ids_BL)
        for block in self.blocks:
            x_BLD = block(x_BLD, cos, sin)
        return self.output_layer(x_BLD)

    def loss(self, ids_BL: Tensor, t_B: Tensor, u_BL: Tensor) -> Tensor:
        """Nats a token of the bound at times t under the log-linear schedule; tokens with u < t are masked."""
        masked_BL = u_BL < t_B[:, None]
        logits_BLV = self(ids_BL.masked_fill(masked_BL, self.shape.mask_token_id))
        targets_BL = ids_BL.masked_fill(~masked_BL, IGNORED)
        nll = F.cross_entropy(
            logits_BLV.flatten(0, 1), targets_BL.flatten(), ignore_index=IGNORED, reduction="none"
        ).view_as(u_BL)
        return (nll / t_B[:, None]).sum() / ids_BL.numel()


def rotary(length: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine [L, d/2] of the angles by which positions turn."""
    frequency = 10_000.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
    angle = torch.arange(length)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + d/2) of x [B, H, L, d]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def draw_noise(ids_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Stratified times [B] above 0, and uniforms [B, L]."""
    batch, device = ids_BL.shape[0], ids_BL.device
    t_B = (torch.rand((), device=device) + torch.arange(batch, device=device) / batch) % 1
    return t_B.clamp_min(1e-6), torch.rand(ids_BL.shape, device=device)


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Products in this precision."""
    return torch.autocast(device.type, precision, enabled=precision != torch.float32)


class PlainTrainer:
    """A network, AdamW in one kernel, clipping, and the average of the weights."""

    def __init__(self, network: PlainDiT, precision: torch.dtype, ema: float = 0.9999) -> None:
        self.network = network.train()
        self.precision = precision
        self.parameters: list[Tensor] = list(network.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=3e-4, weight_decay=0.0, fused=True)
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.ema = ema

    def step(self, ids_BL: Tensor) -> None:
        """One step on clean rows that lie on the device."""
        with autocast(ids_BL.device, self.precision):
            loss = self.network.loss(ids_BL, *draw_noise(ids_BL))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, 1.0 - self.ema)


@torch.inference_mode()
def plain_walk(
    network: PlainDiT, batch: int, length: int, steps: int, precision: torch.dtype
) -> Iterator[tuple[Tensor, int]]:
    """Ancestral sampling: the canvas [B, L] and the network calls so far, before the first of T steps and after each.

    With t = i/T and s = (i-1)/T a masked position is revealed with the chance (t - s)/t = 1/i. Tokens are drawn at all
    positions by the inverse of their cumulated probabilities, which costs less than noise for every token. The network
    is called where the canvas has changed; otherwise the last probabilities serve again.
    """
    mask, device = network.shape.mask_token_id, network.cos.device
    z_BL = torch.full((batch, length), mask, device=device)
    calls, changed = 0, True
    yield z_BL, calls
    for i in range(steps, 0, -1):
        if changed:
            with autocast(device, precision):
                cumulated_BLV = torch.softmax(network(z_BL), dim=-1, dtype=torch.float32).cumsum_(-1)
            calls += 1
        chosen_BL1 = torch.rand((batch, length, 1), device=device) * cumulated_BLV[..., -1:]
        drawn_BL = torch.searchsorted(cumulated_BLV, chosen_BL1).squeeze(-1)
        revealed_BL = (z_BL == mask) & (torch.rand((batch, length), device=device) * i < 1)
        new_BL = torch.where(revealed_BL, drawn_BL, z_BL)
        changed = not torch.equal(new_BL, z_BL)
        z_BL = new_BL
        yield z_BL, calls


@torch.inference_mode()
def plain_bound(network: PlainDiT, rows_NL: Tensor, batch: int, precision: torch.dtype) -> float:
    """Nats a token of rows on the CPU, by one draw each."""
    device = network.cos.device
    nats = torch.zeros((), device=device)
    for rows_BL in rows_NL.split(batch):
        ids_BL = rows_BL.to(device, non_blocking=True)
        with autocast(device, precision):
            nats += network.loss(ids_BL, *draw_noise(ids_BL)) * ids_BL.numel()
    return float(nats) / rows_NL.numel()
