"""Mamba and bidirectional Mamba: state-space models whose time and memory grow linearly with the length."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from unmask.models.causal import RecurrentCache, RecurrentNetwork
from unmask.models.config import MAX_LAYERS, AutoregressiveConfig, MaskedConfig, NetworkConfig
from unmask.models.dit import MaskedNetwork
from unmask.models.layers import Dropout, LayerNorm, Modulation, ZeroLinear, apply_gate, modulate, rows_at
from unmask.models.scan import selective_scan
from unmask.registry import Component

MIN_STEP, MAX_STEP = 1e-3, 1e-1
"""The range of the initial step sizes dt."""

AttentionFreeSize = Literal["dna", "nano", "tiny", "small", "medium"]

MAMBA_SIZES: dict[AttentionFreeSize, dict[str, int]] = {
    "dna": {"num_hidden_layers": 4, "hidden_size": 128},
    "nano": {"num_hidden_layers": 8, "hidden_size": 128},
    "tiny": {"num_hidden_layers": 16, "hidden_size": 512},
    "small": {"num_hidden_layers": 24, "hidden_size": 768},
    "medium": {"num_hidden_layers": 48, "hidden_size": 1024},
}
"""Twice the blocks of a transformer of the same name, since a block has half the parameters; `dna` has 466K."""
BIMAMBA_SIZES = MAMBA_SIZES | {"dna": {"num_hidden_layers": 4, "hidden_size": 118}}
"""The same, except that `dna` has 470K parameters with the second direction."""


# ---- configurations -------------------------------------------------------------------------------------------------


class SSMConfig(NetworkConfig):
    """The fields that Mamba networks share.

    Args:
        state_size: N, numbers in the state of a channel.
        conv_width: Tokens that the convolution before the scan covers.
        expand: Channels of the scan divided by ``hidden_size``.
        dt_rank: Rank of the projection to the step sizes; by default ``hidden_size / 16``, rounded up.
        kwargs: The fields of `NetworkConfig`.
    """

    def __init__(
        self,
        state_size: int = 16,
        conv_width: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.state_size = state_size
        self.conv_width = conv_width
        self.expand = expand
        self.dt_rank = -(-self.hidden_size // 16) if dt_rank is None else dt_rank
        self._check_sizes("state_size", "conv_width", "expand", "dt_rank")


class MambaConfig(AutoregressiveConfig, SSMConfig):
    """The autoregressive network, with the fields of `AutoregressiveConfig` and `SSMConfig`."""

    model_type = "unmask-mamba"

    def __init__(self, **kwargs: Any) -> None:  # without it, transformers would generate one
        super().__init__(**kwargs)


class BiMambaConfig(MaskedConfig, SSMConfig):
    """The bidirectional denoiser, with the fields of `MaskedConfig` and `SSMConfig`."""

    model_type = "unmask-bimamba"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


# ---- blocks ---------------------------------------------------------------------------------------------------------


class SelectiveSSM(nn.Module):
    """A short causal convolution and a selective scan over the channels of a block.

    Padding is zero before and after the convolution, so it neither enters the state nor reaches the convolution of
    tokens behind it. `log_decay`, log(-A) of shape [N, D], is stored flat, since optimizers decay and orthogonalise
    matrices.
    """

    def __init__(self, config: SSMConfig) -> None:
        super().__init__()
        inner = config.expand * config.hidden_size
        self.state_size, self.dt_rank = config.state_size, config.dt_rank
        self.conv = nn.Conv1d(inner, inner, config.conv_width, groups=inner)
        self.x_proj = nn.Linear(inner, config.dt_rank + 2 * config.state_size, bias=False)
        self.dt_proj = nn.Linear(config.dt_rank, inner, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(inner))
        self.log_decay = nn.Parameter(torch.empty(config.state_size * inner))
        self.skip = nn.Parameter(torch.empty(inner))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A = -1, ..., -N in every channel, and step sizes that are log-uniform in [MIN_STEP, MAX_STEP]."""
        with torch.no_grad():
            number = torch.arange(1, self.state_size + 1, device=self.log_decay.device)
            self.log_decay.copy_(number.log().repeat_interleave(len(self.skip)))
            self.dt_bias.uniform_(math.log(MIN_STEP), math.log(MAX_STEP)).exp_()
            self.dt_bias.add_(torch.log(-torch.expm1(-self.dt_bias)))  # the inverse of softplus
            self.skip.fill_(1.0)

    def forward(
        self, x: Tensor, mask: Tensor | None, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs [B, L, D] of inputs [B, L, D], and the state after them: the last inputs and the state of the scan.

        ``mask`` [B, L] is False at padding.
        """
        x = zero_padding(x, mask)
        width = self.conv.kernel_size[0] - 1
        tail, hidden = (x.new_zeros(x.shape[0], width, x.shape[2]), None) if state is None else state
        inputs = torch.cat([tail.to(x.dtype), x], dim=1)
        x = zero_padding(F.silu(self._convolve(inputs)), mask)
        dt, b, c = self.x_proj(x).split([self.dt_rank, self.state_size, self.state_size], dim=-1)
        exact = torch.promote_types(x.dtype, torch.float32)
        dt = F.softplus(self.dt_proj(dt).to(exact) + self.dt_bias.to(exact))
        decay = -torch.exp(self.log_decay.to(exact)).view(self.state_size, -1)
        y, hidden = selective_scan(x, dt, decay, b, c, hidden)
        return y.to(x.dtype) + self.skip.to(x.dtype) * x, (inputs[:, inputs.shape[1] - width :], hidden)

    def _convolve(self, inputs: Tensor) -> Tensor:
        """The convolution [B, L, D] of inputs [B, L + width - 1, D]: a sum of shifted inputs, which is several times as
        fast as a `conv1d` with as many groups as channels, and can be fused."""
        exact = torch.promote_types(inputs.dtype, torch.float32)
        weight, outputs = self.conv.weight[:, 0].to(exact), self.conv.bias.to(exact)  # type: ignore[union-attr]
        length = inputs.shape[1] - weight.shape[1] + 1
        for shift in range(weight.shape[1]):
            outputs = torch.addcmul(outputs, inputs[:, shift : shift + length].to(exact), weight[:, shift])
        return outputs.to(inputs.dtype)


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """x [B, L, D] with zeros where the mask [B, L] is False."""
    return x if mask is None else x.masked_fill(~mask[:, :, None], 0.0)


class MambaBlock(GradientCheckpointingLayer):
    """A pre-norm block of one branch: projection, selective SSM, gate, projection.

    With two directions the SSMs differ and the projections are shared, as in Caduceus. With ``cond_dim`` a conditioning
    vector modulates the branch (adaLN-zero); without it the output projection starts at zero.
    """

    directions: ClassVar[int] = 1

    def __init__(self, config: SSMConfig, layer: int, cond_dim: int | None) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.expand * config.hidden_size
        self.layer = layer
        self.norm = LayerNorm(width, bias=cond_dim is None)
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.ssms = nn.ModuleList(SelectiveSSM(config) for _ in range(self.directions))
        self.out_proj = (ZeroLinear if cond_dim is None else nn.Linear)(inner, width, bias=False)
        self.dropout = Dropout(config.dropout)
        self.adaLN_modulation = None if cond_dim is None else ZeroLinear(cond_dim, 3 * width)

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

        ``mask`` [B, L] is False at padding. The other arguments are those of `layers.Block`.
        """
        modulation = None
        if self.adaLN_modulation is not None:
            modulation = Modulation(*self.adaLN_modulation(cond)[:, None].chunk(3, dim=-1))
        inner, gate = self.in_proj(modulate(self.norm(x), modulation)).chunk(2, dim=-1)
        state = None if past_key_values is None else past_key_values.states[self.layer]
        mixed, state = self.ssms[0](inner, mask, state)
        if past_key_values is not None:
            past_key_values.states[self.layer] = state
        for backward in self.ssms[1:]:
            mixed = mixed + backward(inner.flip(1), None if mask is None else mask.flip(1), None)[0].flip(1)
        mixed = mixed * F.silu(gate)
        if positions is not None:
            x, mixed = rows_at(x, positions), rows_at(mixed, positions)
        mixed = self.dropout(self.out_proj(mixed), None if seeds is None else seeds[0])
        return x + apply_gate(mixed, modulation)


class BiMambaBlock(MambaBlock):
    """A block that scans in both directions and adds the results."""

    directions: ClassVar[int] = 2


# ---- networks -------------------------------------------------------------------------------------------------------


class Mamba(RecurrentNetwork):
    """The autoregressive state-space model. Its cache has the same size however many tokens it has read."""

    config: MambaConfig
    config_class = MambaConfig
    block_class = MambaBlock


class BiMamba(MaskedNetwork):
    """The bidirectional state-space denoiser."""

    config: BiMambaConfig
    config_class = BiMambaConfig
    block_class = BiMambaBlock


# ---- specs ----------------------------------------------------------------------------------------------------------


class AttentionFreeSpec(Component):
    """The size of a network without attention, and overrides of its fields."""

    sizes: ClassVar[dict[AttentionFreeSize, dict[str, int]]]

    size: AttentionFreeSize = "small"
    hidden_size: int | None = Field(default=None, ge=1)
    layers: int | None = Field(default=None, ge=1, le=MAX_LAYERS)
    dropout: float = Field(default=0.0, ge=0, le=1)

    def _config_fields(self, vocab_size: int, mask_token_id: int, length: int) -> dict[str, Any]:
        overrides = {"hidden_size": self.hidden_size, "num_hidden_layers": self.layers}
        return {
            **self.sizes[self.size],
            **{name: value for name, value in overrides.items() if value is not None},
            "dropout": self.dropout,
            "vocab_size": vocab_size,
            "mask_token_id": mask_token_id,
            "max_length": length,
        }


class MambaSpec(AttentionFreeSpec):
    """A fresh autoregressive Mamba, whose sequences begin with the mask token."""

    sizes = MAMBA_SIZES
    causal: ClassVar[bool] = True

    name: Literal["mamba"] = "mamba"
    state_size: int = Field(default=16, ge=1)

    def build(self, vocab_size: int, mask_token_id: int, length: int) -> Mamba:
        """A network for a vocabulary of vocab_size tokens (including the mask) and sequences of up to length tokens."""
        fields = self._config_fields(vocab_size, mask_token_id, length)
        return Mamba(MambaConfig(state_size=self.state_size, **fields))


class BiMambaSpec(AttentionFreeSpec):
    """A fresh bidirectional Mamba denoiser, unconditioned by default."""

    sizes = BIMAMBA_SIZES
    causal: ClassVar[bool] = False

    name: Literal["bimamba"] = "bimamba"
    state_size: int = Field(default=16, ge=1)
    conditioned: bool = False
    cond_dim: int = Field(default=128, ge=1)

    def build(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool = False) -> BiMamba:
        """A network for a vocabulary of vocab_size tokens (including the mask) and sequences of up to length tokens."""
        return BiMamba(BiMambaConfig(**self._masked_fields(vocab_size, mask_token_id, length, mask_logit)))

    def _masked_fields(self, vocab_size: int, mask_token_id: int, length: int, mask_logit: bool) -> dict[str, Any]:
        return {
            **self._config_fields(vocab_size, mask_token_id, length),
            "state_size": self.state_size,
            "conditioned": self.conditioned,
            "cond_dim": self.cond_dim,
            "mask_logit": mask_logit,
        }
