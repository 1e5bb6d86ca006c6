"""The modulation of a published network that sees no time is constant: folding it into the weights, and back.

With sigma = 0 the conditioning vector c is the same for every input, and so are shift, scale and gate of each branch:
norm(x) w (1 + scale) + shift is a LayerNorm with weight w (1 + scale) and bias shift, and gate (W y + b) is a linear
map with weight gate W and bias gate b.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.models import attention

PREFIX = "backbone."
ROTARY = "rotary_emb.inv_freq"
ROTARY_BASE = 10_000.0
TIME_FEATURES = 256
PUBLISHED_HEAD_WIDTH = 64

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class PublishedLayout:
    """The sizes of a published network. `cond_dim` is None in the autoregressive twin, which has no modulation."""

    vocab_size: int
    hidden_size: int
    layers: int
    mlp_ratio: int
    cond_dim: int | None

    @classmethod
    def of(cls, shapes: Shapes, where: str) -> PublishedLayout:
        """The layout that the shapes of a checkpoint speak of; whether all of them keep to it, `check` says."""
        vocab_size, width = _matrix(shapes, "vocab_embed.embedding", where)
        inner, _ = _matrix(shapes, "blocks.0.mlp.0.weight", where)
        modulated = any(name.startswith("sigma_map.") or "adaLN_modulation" in name for name in shapes)
        cond_dim = _matrix(shapes, "sigma_map.mlp.0.weight", where)[0] if modulated else None
        layers = len({match[1] for name in shapes if (match := re.match(r"blocks\.(\d+)\.", name))})
        return cls(vocab_size, width, layers, max(1, inner // max(1, width)), cond_dim)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter in the published order, which is that of the EMA list too."""
        width, cond = self.hidden_size, self.cond_dim
        shapes: dict[str, tuple[int, ...]] = {"vocab_embed.embedding": (self.vocab_size, width)}
        if cond is not None:
            shapes |= _linear("sigma_map.mlp.0", cond, TIME_FEATURES) | _linear("sigma_map.mlp.2", cond, cond)
        for layer in range(self.layers):
            shapes |= {f"blocks.{layer}.{name}": shape for name, shape in self._block().items()}
        shapes["output_layer.norm_final.weight"] = (width,)
        shapes |= _linear("output_layer.linear", self.vocab_size, width)
        return shapes if cond is None else shapes | _linear("output_layer.adaLN_modulation", 2 * width, cond)

    def _block(self) -> dict[str, tuple[int, ...]]:
        width, inner, cond = self.hidden_size, self.mlp_ratio * self.hidden_size, self.cond_dim
        shapes: dict[str, tuple[int, ...]] = {
            "norm1.weight": (width,),
            "attn_qkv.weight": (3 * width, width),
            "attn_out.weight": (width, width),
            "norm2.weight": (width,),
            **_linear("mlp.0", inner, width),
            **_linear("mlp.2", width, inner),
        }
        return shapes if cond is None else shapes | _linear("adaLN_modulation", 6 * width, cond)


def check(shapes: Shapes, layout: PublishedLayout, where: str) -> None:
    """Refuse a checkpoint with a key too few, a key too many, or a shape that is not the layout's."""
    expected = layout.parameters()
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise UnmaskError(f"{where} lacks {_first(missing)} of the published network; give the whole checkpoint.")
    unexpected = [name for name in shapes if name not in expected]
    if unexpected:
        raise UnmaskError(
            f"{where} holds {_first(unexpected)} unknown to the published network; give an unchanged checkpoint."
        )
    wrong = [name for name in expected if tuple(shapes[name]) != expected[name]]
    if wrong:
        found, wanted = list(shapes[wrong[0]]), list(expected[wrong[0]])
        raise UnmaskError(
            f"{where} holds {_first(wrong)} of a shape that does not fit ({found} instead of {wanted}); "
            "give an unchanged checkpoint."
        )


def check_shadow(shapes: Sequence[tuple[int, ...]], layout: PublishedLayout, where: str) -> None:
    """Refuse an EMA list that is not one tensor for each parameter, in the published order."""
    expected = layout.parameters()
    if len(shapes) != len(expected):
        raise UnmaskError(
            f"{where} has {len(shapes)} EMA tensors for the {len(expected)} parameters of its network; "
            "convert the raw weights instead (--weights raw)."
        )
    pairs = zip(expected.items(), shapes, strict=True)
    wrong = [(name, list(found), list(wanted)) for (name, wanted), found in pairs if tuple(found) != wanted]
    if wrong:
        name, found, wanted = wrong[0]
        raise UnmaskError(
            f"{where} has an EMA tensor {found} in the place of {name} {wanted}, and {len(wrong) - 1} more such; "
            "convert the raw weights instead (--weights raw)."
        )


def choose_heads(
    layout: PublishedLayout, given: int | None, configured: int | None, rotary: Tensor | None, where: str
) -> int:
    """The number of attention heads: as given, as configured, as the rotary buffer says, or of the published width."""
    width = layout.hidden_size
    heads = given if given is not None else configured
    if heads is None:
        heads = width // (2 * rotary.numel() if rotary is not None and rotary.numel() else PUBLISHED_HEAD_WIDTH)
        if not heads or width % heads:
            raise UnmaskError(f"{where} does not tell its number of attention heads; give it with --heads.")
    if heads < 1 or width % (2 * heads):
        raise UnmaskError(
            f"The width {width} of {where} does not split into {heads} attention heads of an even width; "
            "give the right number with --heads."
        )
    if rotary is not None and not _fits(rotary, width // heads):
        raise UnmaskError(
            f"{where} has rotary frequencies that are not those of {heads} heads and the base {ROTARY_BASE:,.0f}; "
            "give the right number with --heads."
        )
    return heads


def rotary_frequencies(head_width: int) -> Tensor:
    """The published buffer of rotary frequencies, [head_width / 2]."""
    return attention.rotary_frequencies(head_width, ROTARY_BASE, torch.device("cpu"))


def _fits(rotary: Tensor, head_width: int) -> bool:
    """Whether the buffer is the published one, up to the rounding of half precision."""
    wanted = rotary_frequencies(head_width)
    return rotary.shape == wanted.shape and torch.allclose(rotary.float(), wanted, rtol=1e-2, atol=1e-6)


def _linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _matrix(shapes: Shapes, name: str, where: str) -> tuple[int, int]:
    shape = tuple(shapes.get(name, ()))
    if len(shape) != 2:
        raise UnmaskError(
            f"{where} is not a published network: it has no matrix {name}; give a checkpoint of the MDLM code."
        )
    return shape


def _first(names: Sequence[str]) -> str:
    return f"the key {names[0]}" if len(names) == 1 else f"the key {names[0]} and {len(names) - 1} more"


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
