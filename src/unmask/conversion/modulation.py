"""The modulation of a published network that sees no time is constant: folding it into the weights, and back.

With sigma = 0 the conditioning vector c is the same for every input, and so are shift, scale and gate of each branch:
norm(x) w (1 + scale) + shift is a LayerNorm with weight w (1 + scale) and bias shift, and gate (W y + b) is a linear
map with weight gate W and bias gate b.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.conversion.layout import TIME_FEATURES

Weights = dict[str, Tensor]


def fold(weights: Weights, layers: int) -> Weights:
    """The unconditioned trunk that is the published network at sigma = 0; computed in float64, returned in float32."""
    folded = {name: weight.double() for name, weight in weights.items()}
    cond = _condition_at_zero(folded)
    for layer in range(layers):
        block = f"blocks.{layer}"
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = _modulation(folded, block, cond, parts=6)
        _fold_norm(folded, f"{block}.norm1", shift_attn, scale_attn)
        _fold_norm(folded, f"{block}.norm2", shift_mlp, scale_mlp)
        for name, gate in (
            ("attn_out.weight", gate_attn[:, None]),
            ("mlp.2.weight", gate_mlp[:, None]),
            ("mlp.2.bias", gate_mlp),
        ):
            folded[f"{block}.{name}"] = gate * folded[f"{block}.{name}"]
    _fold_norm(folded, "output_layer.norm_final", *_modulation(folded, "output_layer", cond, parts=2))
    return {name: weight.float() for name, weight in folded.items() if not name.startswith("sigma_map.")}


def unfold(weights: Weights, layers: int, cond_dim: int) -> Weights:
    """The published network that is an unconditioned trunk at every sigma.

    The modulation is constant because its weights (and sigma_map) are zero; its biases hold shift = the bias of the
    norm, scale = 0 and gate = 1. All else stays as it is, so that folding gives the trunk back bit by bit.
    """
    published = {name: weight for name, weight in weights.items() if not _is_norm_bias(name)}
    for index, width in ((0, TIME_FEATURES), (2, cond_dim)):
        published[f"sigma_map.mlp.{index}.weight"] = torch.zeros(cond_dim, width)
        published[f"sigma_map.mlp.{index}.bias"] = torch.zeros(cond_dim)
    for layer in range(layers):
        block = f"blocks.{layer}"
        shift_attn, shift_mlp = weights[f"{block}.norm1.bias"], weights[f"{block}.norm2.bias"]
        scale, gate = torch.zeros_like(shift_attn), torch.ones_like(shift_attn)
        _set_constant(published, block, torch.cat([shift_attn, scale, gate, shift_mlp, scale, gate]), cond_dim)
    shift = weights["output_layer.norm_final.bias"]
    _set_constant(published, "output_layer", torch.cat([shift, torch.zeros_like(shift)]), cond_dim)
    return published


def with_norm_biases(weights: Weights) -> Weights:
    """The weights of the autoregressive twin with the zero biases that its published norms do not have."""
    biases = {
        name.removesuffix("weight") + "bias": torch.zeros_like(weight)
        for name, weight in weights.items()
        if _is_norm_bias(name.removesuffix("weight") + "bias")
    }
    return weights | biases


def without_norm_biases(weights: Weights) -> Weights | None:
    """The weights without the biases of the norms; None where one of them is not zero."""
    if any(weight.any() for name, weight in weights.items() if _is_norm_bias(name)):
        return None
    return {name: weight for name, weight in weights.items() if not _is_norm_bias(name)}


def _condition_at_zero(weights: Weights) -> Tensor:
    """c = silu(MLP(sinusoidal(0))), [cond_dim]: the cosines of 0 come first and are one, the sines are zero."""
    half = TIME_FEATURES // 2
    features = torch.cat([torch.ones(half), torch.zeros(half)]).double()
    inner = F.linear(features, weights["sigma_map.mlp.0.weight"], weights["sigma_map.mlp.0.bias"])
    return F.silu(F.linear(F.silu(inner), weights["sigma_map.mlp.2.weight"], weights["sigma_map.mlp.2.bias"]))


def _modulation(weights: Weights, module: str, cond: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Take the modulation of a module out of the weights and evaluate it: `parts` vectors [D]."""
    weight, bias = (weights.pop(f"{module}.adaLN_modulation.{kind}") for kind in ("weight", "bias"))
    return F.linear(cond, weight, bias).chunk(parts)


def _fold_norm(weights: Weights, norm: str, shift: Tensor, scale: Tensor) -> None:
    weights[f"{norm}.weight"] = weights[f"{norm}.weight"] * (1 + scale)
    weights[f"{norm}.bias"] = shift


def _set_constant(weights: Weights, module: str, bias: Tensor, cond_dim: int) -> None:
    weights[f"{module}.adaLN_modulation.weight"] = torch.zeros(len(bias), cond_dim)
    weights[f"{module}.adaLN_modulation.bias"] = bias


def _is_norm_bias(name: str) -> bool:
    return name.endswith((".norm1.bias", ".norm2.bias", ".norm_final.bias"))
