"""The absorbing process: q(z_t | x), q(z_s | z_t, x) and the prior, as pure functions on tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_STEPS = 1_000_000
"""The largest T of a process in discrete time."""


@dataclass(frozen=True)
class Batch:
    """`input_ids` [B, L] clean tokens; `attention_mask` [B, L] False at padding; `frozen` [B, L] True at given tokens.

    Frozen positions (prompts, translation sources, puzzle givens) are never corrupted, predicted or counted.
    """

    input_ids: Tensor
    attention_mask: Tensor
    frozen: Tensor
    has_pads: bool = True

    @classmethod
    def of(cls, input_ids: Tensor, attention_mask: Tensor | None = None, frozen: Tensor | None = None) -> Batch:
        """A batch in which nothing is padded or frozen by default. Checking a given mask synchronises a GPU."""
        has_pads = attention_mask is not None and not bool(attention_mask.all())
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
        if frozen is None:
            frozen = torch.zeros_like(input_ids, dtype=torch.bool)
        return cls(input_ids, attention_mask.bool(), frozen.bool(), has_pads)

    @classmethod
    def of_rows(cls, rows: Any) -> Batch:
        """The batch of a `RowBatch`, on the CPU."""
        return cls.of(*map(torch.from_numpy, (rows.input_ids, rows.attention_mask, rows.frozen)))

    @property
    def target_mask(self) -> Tensor:
        """[B, L] the positions that are corrupted, predicted and counted."""
        return self.attention_mask & ~self.frozen

    @property
    def key_padding_mask(self) -> Tensor | None:
        """`attention_mask`, or None without padding, for which attention is faster."""
        return self.attention_mask if self.has_pads else None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with a function applied to every tensor."""
        return Batch(function(self.input_ids), function(self.attention_mask), function(self.frozen), self.has_pads)


def sample_mask(batch: Batch, mask_rate: Tensor, noise: Tensor) -> Tensor:
    """[B, L] the positions that q(z_t | x) masks (eq. 4): each target token with probability 1 - alpha_t.

    `mask_rate` [B] is 1 - alpha_t; `noise` [B, L] are uniforms.
    """
    return (noise < mask_rate[:, None]) & batch.target_mask


def sample_mask_of_size(batch: Batch, count: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """[B, L] exactly `count` [B] target positions, those with the smallest noise: the mask-count form of the bound.

    Also returns the count-th smallest noise [B], the mask rate for a conditioned denoiser. It is a Beta(n, L - n + 1)
    draw that is independent of the chosen positions.
    """
    ranked, order = noise.masked_fill(~batch.target_mask, 2.0).sort(dim=1, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    masked = (rank < count[:, None]) & batch.target_mask
    return masked, ranked.gather(1, (count[:, None] - 1).clamp_min(0)).squeeze(1).clamp_max(1.0)


def mask_tokens(batch: Batch, masked: Tensor, mask_token_id: int) -> Tensor:
    """z_t [B, L]: the clean tokens with the mask token at the masked positions."""
    return batch.input_ids.masked_fill(masked, mask_token_id)


def posterior(z_t: Tensor, x: Tensor, mask_rate_s: float, mask_rate_t: float, mask_token_id: int) -> Tensor:
    """q(z_s | z_t, x) of eq. 6; with x replaced by x_theta, the reverse step of eq. 7.

    `z_t` [...] tokens; `x` [..., V] probabilities of the clean token (one-hot for q), 0 at the mask. Returns [..., V].
    This is the form that the laws check; samplers draw with `reveal_probability`.
    """
    visible = torch.nn.functional.one_hot(z_t, x.shape[-1]).to(x.dtype)
    reveal = (mask_rate_t - mask_rate_s) / mask_rate_t
    mask = torch.zeros_like(visible)
    mask[..., mask_token_id] = 1.0
    return torch.where((z_t == mask_token_id)[..., None], reveal * x + (1.0 - reveal) * mask, visible)


def reveal_probability(mask_rate_s: Tensor, mask_rate_t: Tensor, remask: Tensor | float = 0.0) -> Tensor:
    """(alpha_s - alpha_t) / (1 - alpha_t): the probability that a token masked at t is visible at s < t (eq. 6).

    If visible tokens are remasked with probability rho (`remask`), as in ReMDM, it is
    (alpha_s - (1 - rho) alpha_t) / (1 - alpha_t), so that a share 1 - alpha_s of all tokens is masked at s.
    """
    return (mask_rate_t - mask_rate_s + remask * (1.0 - mask_rate_t)) / mask_rate_t


def remask_limit(mask_rate_s: Tensor, mask_rate_t: Tensor) -> Tensor:
    """min(1, (1 - alpha_s) / alpha_t): the largest rho for which `reveal_probability` is a probability."""
    return torch.where(mask_rate_s < 1.0 - mask_rate_t, mask_rate_s / (1.0 - mask_rate_t), 1.0)


def prior(shape: tuple[int, ...], mask_token_id: int, device: torch.device | str | None = None) -> Tensor:
    """z_1: every token is the mask."""
    return torch.full(shape, mask_token_id, dtype=torch.int64, device=device)
