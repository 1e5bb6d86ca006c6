"""The published networks: their keys and shapes, and the modulation of a network without time conditioning.

With sigma = 0 the conditioning vector c is the same for every input, and so are shift, scale and gate of each branch:
norm(x) w (1 + scale) + shift is a LayerNorm with weight w (1 + scale) and bias shift, and gate (W y + b) is a linear
map with weight gate W and bias gate b. `fold` computes these weights. `unfold` makes a published network of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.models.attention import rotary_frequencies
from unmask.models.causal import CausalLM
from unmask.models.config import CausalConfig, DiTConfig
from unmask.models.dit import DiT
from unmask.models.layers import TIME_FEATURES

PREFIX = "backbone."
ROTARY = "rotary_emb.inv_freq"
ROTARY_BASE = 10_000.0
HEAD_DIM = 64
"""Width of a published attention head."""

Shape = tuple[int, ...]
Weights = dict[str, Tensor]


# ---- keys and shapes -------------------------------------------------------------------------------------------------


def infer_sizes(shapes: Mapping[str, Shape], where: str) -> dict[str, Any]:
    """Return the config fields that the shapes determine; `cond_dim` is missing from an autoregressive network."""

    def matrix(name: str) -> Shape:
        shape = shapes.get(name, ())
        if len(shape) != 2:
            raise UnmaskError(
                f"{where} is not a published network: it has no matrix {name}; give a checkpoint of the MDLM code."
            )
        return shape

    vocab_size, width = matrix("vocab_embed.embedding")
    inner, _ = matrix("blocks.0.mlp.0.weight")
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": len({match[1] for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name))}),
        "mlp_ratio": max(1, inner // max(1, width)),
    }
    if any(name.startswith("sigma_map.") or "adaLN_modulation" in name for name in shapes):
        sizes["cond_dim"] = matrix("sigma_map.mlp.0.weight")[0]
    return sizes


def infer_heads(width: int, given: int | None, rotary: Tensor | None, where: str) -> int:
    """Return the number of attention heads: the given one, else from the rotary buffer, else of the published width."""
    heads = given
    if heads is None:
        head_dim = 2 * rotary.numel() if rotary is not None and rotary.numel() else HEAD_DIM
        heads = width // head_dim
        if not heads or width % head_dim:
            raise UnmaskError(f"{where} does not determine the number of attention heads; give it with --heads.")
    if heads < 1 or width % (2 * heads):
        raise UnmaskError(
            f"The width {width} of {where} does not split into {heads} attention heads of even width; "
            "give the right number with --heads."
        )
    if rotary is not None:
        wanted = published_frequencies(width // heads)
        # half precision rounds the buffer
        if rotary.shape != wanted.shape or not torch.allclose(rotary.float(), wanted, rtol=1e-2, atol=1e-6):
            raise UnmaskError(
                f"The rotary frequencies of {where} are not those of {heads} heads with base {ROTARY_BASE:,.0f}; "
                "give the right number with --heads."
            )
    return heads


def published_frequencies(head_dim: int) -> Tensor:
    """Return the published buffer of rotary frequencies, [head_dim / 2]."""
    return rotary_frequencies(head_dim, ROTARY_BASE, torch.device("cpu"))


def published_shapes(config: DiTConfig | CausalConfig) -> dict[str, Shape]:
    """Return name and shape of each published parameter, in the published order, which is that of the EMA list.

    These are the parameters of our conditioned DiT, and of our causal network without the biases of its norms.
    """
    network: Any = CausalLM if isinstance(config, CausalConfig) else DiT
    with torch.device("meta"):
        parameters = network(config).named_parameters()
    return {name: tuple(weight.shape) for name, weight in parameters if not is_norm_bias(name)}


def check_keys(shapes: Mapping[str, Shape], expected: Mapping[str, Shape], where: str) -> None:
    """Raise on a missing key, an unknown key or a wrong shape."""
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise UnmaskError(f"{where} lacks {_first(missing)} of the published network; give the whole checkpoint.")
    unknown = [name for name in shapes if name not in expected]
    if unknown:
        raise UnmaskError(f"{where} has {_first(unknown)} unknown to the published network; give the original file.")
    wrong = [name for name in expected if shapes[name] != expected[name]]
    if wrong:
        found, wanted = list(shapes[wrong[0]]), list(expected[wrong[0]])
        raise UnmaskError(
            f"{where} has {_first(wrong)} of the wrong shape ({found} instead of {wanted}); give the original file."
        )


def check_ema(shapes: Sequence[Shape], expected: Mapping[str, Shape], where: str) -> None:
    """Raise unless the EMA list has one tensor per parameter, in the published order."""
    if len(shapes) != len(expected):
        raise UnmaskError(
            f"{where} has {len(shapes)} EMA tensors for {len(expected)} parameters; "
            "convert the raw weights instead (--weights raw)."
        )
    for (name, wanted), found in zip(expected.items(), shapes, strict=True):
        if found != wanted:
            raise UnmaskError(
                f"{where} has an EMA tensor {list(found)} in place of {name} {list(wanted)}; "
                "convert the raw weights instead (--weights raw)."
            )


def _first(names: Sequence[str]) -> str:
    return f"the key {names[0]}" if len(names) == 1 else f"the key {names[0]} and {len(names) - 1} more"


# ---- constant modulation ---------------------------------------------------------------------------------------------


def fold(weights: Weights, layers: int) -> Weights:
    """Return the unconditioned network equal to the published one at sigma = 0, computed in float64, in float32."""
    folded = {name: weight.double() for name, weight in weights.items()}
    # c = silu(MLP(sinusoidal(0))), [cond_dim]: the cosines of 0 come first and are one, the sines are zero
    half = TIME_FEATURES // 2
    features = torch.cat([torch.ones(half), torch.zeros(half)]).double()
    inner = F.linear(features, folded["sigma_map.mlp.0.weight"], folded["sigma_map.mlp.0.bias"])
    c = F.silu(F.linear(F.silu(inner), folded["sigma_map.mlp.2.weight"], folded["sigma_map.mlp.2.bias"]))

    def modulation(module: str, parts: int) -> tuple[Tensor, ...]:
        weight, bias = (folded.pop(f"{module}.adaLN_modulation.{kind}") for kind in ("weight", "bias"))
        return F.linear(c, weight, bias).chunk(parts)

    def fold_norm(norm: str, shift: Tensor, scale: Tensor) -> None:
        folded[f"{norm}.weight"] = folded[f"{norm}.weight"] * (1 + scale)
        folded[f"{norm}.bias"] = shift

    for block in (f"blocks.{layer}" for layer in range(layers)):
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = modulation(block, 6)
        fold_norm(f"{block}.norm1", shift_attn, scale_attn)
        fold_norm(f"{block}.norm2", shift_mlp, scale_mlp)
        folded[f"{block}.attn_out.weight"] = gate_attn[:, None] * folded[f"{block}.attn_out.weight"]
        folded[f"{block}.mlp.2.weight"] = gate_mlp[:, None] * folded[f"{block}.mlp.2.weight"]
        folded[f"{block}.mlp.2.bias"] = gate_mlp * folded[f"{block}.mlp.2.bias"]
    fold_norm("output_layer.norm_final", *modulation("output_layer", 2))
    return {name: weight.float() for name, weight in folded.items() if not name.startswith("sigma_map.")}


def unfold(weights: Weights, layers: int, cond_dim: int) -> Weights:
    """Return the published network equal to an unconditioned one at every sigma.

    The weights of the modulation and of sigma_map are zero; the biases of the modulation are shift = bias of the norm,
    scale = 0 and gate = 1. All other weights are unchanged, so `fold` restores the network bit by bit.
    """
    published = {name: weight for name, weight in weights.items() if not is_norm_bias(name)}
    for index, width in ((0, TIME_FEATURES), (2, cond_dim)):
        published[f"sigma_map.mlp.{index}.weight"] = torch.zeros(cond_dim, width)
        published[f"sigma_map.mlp.{index}.bias"] = torch.zeros(cond_dim)
    shift = weights["output_layer.norm_final.bias"]
    scale, gate = torch.zeros_like(shift), torch.ones_like(shift)
    biases = {"output_layer": [shift, scale]}
    for block in (f"blocks.{layer}" for layer in range(layers)):
        shift_attn, shift_mlp = weights[f"{block}.norm1.bias"], weights[f"{block}.norm2.bias"]
        biases[block] = [shift_attn, scale, gate, shift_mlp, scale, gate]
    for module, parts in biases.items():
        bias = torch.cat(parts)
        published[f"{module}.adaLN_modulation.weight"] = torch.zeros(len(bias), cond_dim)
        published[f"{module}.adaLN_modulation.bias"] = bias
    return published


def add_norm_biases(weights: Weights) -> Weights:
    """Add the zero biases of the norms, which the published autoregressive network does not have."""
    biases = {name.removesuffix("weight") + "bias": weight for name, weight in weights.items()}
    return weights | {name: torch.zeros_like(weight) for name, weight in biases.items() if is_norm_bias(name)}


def is_norm_bias(name: str) -> bool:
    """Return whether a parameter is the bias of a norm."""
    return name.endswith((".norm1.bias", ".norm2.bias", ".norm_final.bias"))
