"""Hyena (arXiv 2302.10866): gated long convolutions with implicit filters, causal (HyenaDNA) or bidirectional."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from unmask.errors import UnmaskError
from unmask.models.causal import RecurrentCache, RecurrentNetwork
from unmask.models.config import AutoregressiveConfig, MaskedConfig, NetworkConfig
from unmask.models.dit import MaskedNetwork
from unmask.models.layers import Dropout, Gelu, LayerNorm, Mlp, ZeroLinear, rows_at
from unmask.models.mamba import AttentionFreeSize, AttentionFreeSpec, zero_padding

SHORT_WIDTH = 3
"""Tokens that the convolution before the gates covers."""
BANDS = 2
"""Frequencies of the features of a distance."""
FREQUENCY = 10.0
"""The initial factor inside the sines of the filter network."""
SLOW, FAST = math.log(100) / 1.5, math.log(100) / 0.3
"""The filters decay to 1/100 within 1.5 (first channel) to 0.3 (last channel) of `filter_length`."""

HYENA_SIZES: dict[AttentionFreeSize, dict[str, int]] = {
    "dna": {"num_hidden_layers": 2, "hidden_size": 128},
    "nano": {"num_hidden_layers": 4, "hidden_size": 128},
    "tiny": {"num_hidden_layers": 8, "hidden_size": 512},
    "small": {"num_hidden_layers": 12, "hidden_size": 768},
    "medium": {"num_hidden_layers": 24, "hidden_size": 1024},
}
"""The blocks of a transformer of the same name; `dna` has 435K parameters."""


# ---- configurations -------------------------------------------------------------------------------------------------


class LongConvolutionConfig(NetworkConfig):
    """The fields that Hyena networks share.

    Args:
        mlp_ratio: Width of the MLP divided by ``hidden_size``.
        filter_size: Width of the network that computes the filters.
        filter_length: The distance at which a feature of the filter network is 1; by default ``max_length``. Longer
            sequences continue the filters.
        kwargs: The fields of `NetworkConfig`.
    """

    def __init__(
        self, mlp_ratio: int = 4, filter_size: int = 64, filter_length: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.mlp_ratio = mlp_ratio
        self.filter_size = filter_size
        self.filter_length = self.max_length if filter_length is None else filter_length
        self._check_sizes("mlp_ratio", "filter_size", "filter_length")


class HyenaConfig(MaskedConfig, LongConvolutionConfig):
    """The bidirectional denoiser, with the fields of `MaskedConfig` and `LongConvolutionConfig`."""

    model_type = "unmask-hyena"

    def __init__(self, **kwargs: Any) -> None:  # without it, transformers would generate one
        super().__init__(**kwargs)
        if self.modulated:
            raise UnmaskError("A Hyena network cannot be conditioned on alpha; set conditioned=false, or use bimamba.")


class CausalHyenaConfig(AutoregressiveConfig, LongConvolutionConfig):
    """The autoregressive network, with the fields of `AutoregressiveConfig` and `LongConvolutionConfig`."""

    model_type = "unmask-causal-hyena"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


# ---- blocks ---------------------------------------------------------------------------------------------------------


class ImplicitFilter(nn.Module):
    """Filters of D channels as a function of the distance: a small network with sine activations times a decay.

    Its weights stay in float32: rounded to bf16 they would change the filters by 10%, since every sine has a factor.
    """

    def __init__(self, config: LongConvolutionConfig, directions: int) -> None:
        super().__init__()
        self.length = config.filter_length
        size = config.filter_size
        self.frequency = nn.Parameter(torch.empty(size))
        self.layers = nn.ModuleList([nn.Linear(2 * BANDS + 1, size), nn.Linear(size, size), nn.Linear(size, size)])
        self.out = nn.Linear(size, directions * config.hidden_size, bias=False)
        self.directions = directions
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.frequency, FREQUENCY)

    def forward(self, length: int) -> Tensor:
        """[directions, D, length] the filters at distances 0, ..., length - 1, in float32 or finer.

        They are computed in float64, since the sines amplify rounding errors, which depend on the length.
        """
        exact = torch.promote_types(self.out.weight.dtype, torch.float32)
        options: dict[str, Any] = {"device": self.out.weight.device, "dtype": torch.float64}
        t = torch.arange(length, **options)[:, None] / self.length
        angle = 2 * math.pi * t * torch.linspace(1e-4, BANDS - 1, BANDS, **options)
        features = torch.cat([t, angle.cos(), angle.sin()], dim=-1)
        with torch.autocast(t.device.type, enabled=False):
            for layer in self.layers:
                weight, bias = (parameter.double() for parameter in layer.parameters())
                features = torch.sin(self.frequency * F.linear(features, weight, bias))
            filters = F.linear(features, self.out.weight.double()).unflatten(-1, (self.directions, -1))
        rates = torch.linspace(SLOW, FAST, filters.shape[-1], **options)
        return (filters * torch.exp(-t * rates)[:, None]).permute(1, 2, 0).to(exact)


def long_convolution(values: Tensor, filters: Tensor) -> Tensor:
    """values [B, L, D] convolved with filters [directions, D, L] by FFT, in float32 or finer.

    The first filter acts on earlier values and the value itself, the second one on later values.
    """
    length = values.shape[1]
    size = 1 << (2 * length - 1).bit_length()
    kernel = F.pad(filters[0], (0, size - length))
    if len(filters) > 1:
        later = F.pad(filters[1][:, 1:].flip(-1), (size - length + 1, 0))
        kernel = kernel + later
    spectrum = torch.fft.rfft(values.transpose(1, 2).to(kernel.dtype), n=size) * torch.fft.rfft(kernel)
    return torch.fft.irfft(spectrum, n=size)[..., :length].transpose(1, 2)


class HyenaBlock(GradientCheckpointingLayer):
    """A pre-norm block: the Hyena operator of order 2, then an MLP. Both output projections start at zero.

    Padding is zero before the short convolution and before the long one, so it does not reach other tokens.
    """

    directions: ClassVar[int] = 2

    def __init__(self, config: LongConvolutionConfig, layer: int, cond_dim: int | None) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.mlp_ratio * config.hidden_size
        self.layer = layer
        self.norm1 = LayerNorm(width, bias=True)
        self.in_proj = nn.Linear(width, 3 * width)
        self.short_conv = nn.Conv1d(3 * width, 3 * width, SHORT_WIDTH, groups=3 * width)
        self.filter = ImplicitFilter(config, self.directions)
        self.skip = nn.Parameter(torch.empty(width))
        self.out_proj = ZeroLinear(width, width)
        self.norm2 = LayerNorm(width, bias=True)
        self.mlp = Mlp(nn.Linear(width, inner), Gelu(), ZeroLinear(inner, width))
        self.dropout = Dropout(config.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.skip)

    def forward(
        self,
        x: Tensor,
        cond: Tensor | None,
        mask: Tensor | None,
        past_key_values: RecurrentCache | None = None,
        positions: Tensor | None = None,
        seeds: Tensor | None = None,
    ) -> Tensor:
        """The residual stream [B, L, D] after this block, or [B, K, D] at ``positions`` [B, K] alone.

        ``mask`` [B, L] is False at padding. The other arguments are those of `layers.Block`; ``cond`` is None.
        """
        first, second = (None, None) if seeds is None else seeds.unbind()
        mixed = self._convolve(self.norm1(x), mask, past_key_values)
        if positions is not None:
            x, mixed = rows_at(x, positions), rows_at(mixed, positions)
        x = x + self.dropout(self.out_proj(mixed), first)
        return x + self.dropout(self.mlp(self.norm2(x)), second)

    def _convolve(self, x: Tensor, mask: Tensor | None, cache: RecurrentCache | None) -> Tensor:
        inputs = zero_padding(self.in_proj(x), mask)
        before, after = (SHORT_WIDTH - 1, 0) if self.directions == 1 else (SHORT_WIDTH // 2, SHORT_WIDTH // 2)
        state = None if cache is None else cache.states[self.layer]
        if state is not None:
            inputs = torch.cat([state[0].to(inputs.dtype), inputs], dim=1)
            before = 0
        padded = F.pad(inputs, (0, 0, before, after))
        gate, inner, value = self.short_conv(padded.transpose(1, 2)).transpose(1, 2).chunk(3, dim=-1)
        value = zero_padding(value * inner, mask)
        new, values = value.shape[1], value
        if state is not None:
            values = torch.cat([state[1].to(value.dtype), value], dim=1)
        filters = self._filters(values.shape[1], state)
        if cache is not None:
            tail = padded[:, padded.shape[1] - SHORT_WIDTH + 1 :]
            cache.states[self.layer] = (tail, values, filters.expand(len(values), -1, -1, -1))
        filters = filters[..., : values.shape[1]]
        if new == 1 and self.directions == 1:
            mixed = torch.einsum("bld,dl->bd", values.to(filters.dtype), filters[0].flip(-1))[:, None]
        else:
            mixed = long_convolution(values, filters)[:, -new:]
        return (mixed.to(x.dtype) + self.skip.to(x.dtype) * value) * gate

    def _filters(self, length: int, state: tuple[Tensor, ...] | None) -> Tensor:
        """Filters for at least `length` distances. With a cache they are computed for twice as many and kept."""
        if state is not None and state[2].shape[-1] >= length:
            return state[2][0]
        return self.filter(length if state is None else 2 * length)


class CausalHyenaBlock(HyenaBlock):
    """A block whose convolutions read earlier tokens only."""

    directions: ClassVar[int] = 1


# ---- networks and their spec ----------------------------------------------------------------------------------------


class Hyena(MaskedNetwork):
    """The bidirectional denoiser."""

    config: HyenaConfig
    config_class = HyenaConfig
    block_class = HyenaBlock
    _keep_in_fp32_modules_strict = ["filter"]  # noqa: RUF012


class CausalHyena(RecurrentNetwork):
    """The autoregressive network. Its cache holds the values of all tokens, since a convolution has no finite state."""

    config: CausalHyenaConfig
    config_class = CausalHyenaConfig
    block_class = CausalHyenaBlock
    _keep_in_fp32_modules_strict = ["filter"]  # noqa: RUF012


class HyenaSpec(AttentionFreeSpec):
    """A fresh Hyena network: a bidirectional denoiser or, with `causal`, an autoregressive model as HyenaDNA."""

    sizes = HYENA_SIZES

    name: Literal["hyena"] = "hyena"
    causal: bool = False
    """Whether the network is autoregressive."""
    filter_size: int = Field(default=64, ge=1)

    def build(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool = False) -> Hyena | CausalHyena:
        """A network for a vocabulary of vocab_size tokens (including the mask) and sequences of up to length tokens."""
        fields = {"filter_size": self.filter_size, **self._config_fields(vocab_size, mask_token_id, length)}
        if self.causal:
            return CausalHyena(CausalHyenaConfig(**fields))
        return Hyena(HyenaConfig(mask_logit=mask_logit, **fields))
