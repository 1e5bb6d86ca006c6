"""The layout of the published networks: the name and shape of every parameter, in their order, and strict checks.

Names are written without the ``backbone.`` prefix under which checkpoints hold them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.models.attention import rotary_speeds

PREFIX = "backbone."
ROTARY = "rotary_emb.inv_freq"
ROTARY_BASE = 10_000.0
TIME_FEATURES = 256
PUBLISHED_HEAD_WIDTH = 64

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Layout:
    """The sizes of a published network. `cond_dim` is None in the autoregressive twin, which has no modulation."""

    vocab_size: int
    hidden_size: int
    layers: int
    mlp_ratio: int
    cond_dim: int | None

    @classmethod
    def of(cls, shapes: Shapes, where: str) -> Layout:
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


def check(shapes: Shapes, layout: Layout, where: str) -> None:
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


def check_shadow(shapes: Sequence[tuple[int, ...]], layout: Layout, where: str) -> None:
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


def choose_heads(layout: Layout, given: int | None, configured: int | None, rotary: Tensor | None, where: str) -> int:
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
    return rotary_speeds(head_width, ROTARY_BASE, torch.device("cpu"))


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
