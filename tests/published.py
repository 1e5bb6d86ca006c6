"""The published network written out from its weights, independently of our modules."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HEADS = 4


def randomise(model: Any, seed: int = 0) -> Any:
    """Give every parameter random non-zero values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if "norm" in name and "weight" in name else 0.3 * noise)
    return model.eval()


def published_forward(weights: dict[str, Tensor], ids: Tensor, mask: int, sigma: Tensor | float = 0.0) -> Tensor:
    """Log-probabilities [B, L, V] in float64 at one `sigma` or one per row; without modulation it is autoregressive."""
    w = {name.removeprefix("backbone."): value.detach().double() for name, value in weights.items()}
    causal, length = "sigma_map.mlp.0.weight" not in w, ids.shape[1]
    width = w["vocab_embed.embedding"].shape[1]
    head = width // HEADS
    sigma = torch.as_tensor(sigma).double().expand(len(ids))[:, None]
    angle = torch.outer(torch.arange(length).double(), 10_000.0 ** (-torch.arange(0, head, 2).double() / head))
    rates = torch.exp(-math.log(10_000) * torch.arange(128).double() / 128)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def modulation(name: str, parts: int) -> tuple[Tensor | float, ...]:
        if causal:
            return (0.0, 0.0, 1.0, 0.0, 0.0, 1.0)[:parts]
        features = torch.cat([torch.cos(sigma * rates), torch.sin(sigma * rates)], dim=-1)
        c = F.silu(linear(F.silu(linear(features, "sigma_map.mlp.0")), "sigma_map.mlp.2"))
        return linear(c, f"{name}.adaLN_modulation")[:, None].chunk(parts, dim=-1)

    def normed(x: Tensor, name: str, shift: Tensor | float, scale: Tensor | float) -> Tensor:
        return F.layer_norm(x, (width,)) * w[f"{name}.weight"] * (1 + scale) + shift

    def rotated(x: Tensor) -> Tensor:
        pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angle)[:, None]
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    x = w["vocab_embed.embedding"][ids]
    for i in range(sum("attn_qkv" in name for name in w)):
        block = f"blocks.{i}"
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation(block, 6)
        qkv = linear(normed(x, f"{block}.norm1", shift1, scale1), f"{block}.attn_qkv")
        q, k, v = qkv.reshape(*ids.shape, 3, HEADS, head).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", rotated(q), rotated(k)) / math.sqrt(head)
        if causal:
            scores = scores + torch.full((length, length), -math.inf, dtype=scores.dtype).triu(1)
        mixed = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)
        x = x + gate1 * linear(mixed, f"{block}.attn_out")
        inner = F.gelu(linear(normed(x, f"{block}.norm2", shift2, scale2), f"{block}.mlp.0"), approximate="tanh")
        x = x + gate2 * linear(inner, f"{block}.mlp.2")
    logits = linear(normed(x, "output_layer.norm_final", *modulation("output_layer", 2)), "output_layer.linear")
    logits[..., mask] = -math.inf
    return logits.log_softmax(-1)
