"""What all objectives share: random numbers, the corrupted batch, the terms of the loss and the base class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.data.rows import TEXT_TOKENS
from unmask.models.config import Denoiser, DenoiserConfig
from unmask.models.cross_entropy import Reduce, reduce_rows
from unmask.process import Batch, mask_tokens
from unmask.random import Integer, Purpose, uniform
from unmask.registry import Component
from unmask.schedules import Schedule

ROW_BUCKETS = 32
"""`Corruption.pad_rows` pads the number of rows to one of this many sizes."""
ROW_ALIGNMENT = 64
"""Kernels are specialised for row counts that are divisible by a power of two."""


@dataclass(frozen=True)
class Noise:
    """The random numbers of one batch: `t` [B], a time per sequence, and `u` [B, L], a uniform per position."""

    t: Tensor
    u: Tensor

    @classmethod
    def draw(cls, seed: int, step: Integer, sample: Tensor, t: Tensor, length: int) -> Noise:
        """The noise of the samples with global indices `sample` [B], independent of their batch and process."""
        position = torch.arange(length, device=sample.device)
        return cls(t, uniform(seed, Purpose.MASK, step, sample[:, None], position[None]))


@dataclass(frozen=True)
class Corruption:
    """All that one draw of the noise decides about a batch: the positions to predict, mask rates and weights.

    Training computes it ahead of the step on the CPU, so that the number of rows is known without a synchronisation.
    """

    predicted: Tensor
    """[B, L] the predicted positions: the masked ones, or all counted ones in an objective without noise."""
    rows: Tensor
    """[N] the indices of those positions in the flattened batch, in order, followed by padding rows if any."""
    mask_rate: Tensor | None = None
    """[B] 1 - alpha_t; None without noise."""
    weight: Tensor | None = None
    """[B] w(t) or T (alpha_s - alpha_t)/(1 - alpha_t), the factor of the cross-entropy; None if unused."""
    mask_rate_s: Tensor | None = None
    """[B] 1 - alpha_s at the previous time of the grid; None if the bound does not depend on it."""
    z: Tensor | None = None
    """[B, L] what the network sees; None: the clean tokens with masks at the predicted positions."""

    @classmethod
    def of(
        cls,
        predicted: Tensor,
        mask_rate: Tensor | None = None,
        weight: Tensor | None = None,
        mask_rate_s: Tensor | None = None,
    ) -> Corruption:
        """Build a corruption and list its rows, which synchronises on a GPU."""
        return cls(predicted, predicted.flatten().nonzero()[:, 0], mask_rate, weight, mask_rate_s)

    def map(self, function: Callable[[Tensor], Tensor]) -> Corruption:
        """The same corruption with a function applied to every tensor."""
        values: dict[str, Any] = {
            name: value if value is None else function(value) for name, value in vars(self).items()
        }
        return Corruption(**values)

    def pad_rows(self, share: float = 0.5) -> Corruption:
        """Add rows of weight 0 until the number of rows is one of a few sizes, so that shapes repeat.

        With low-discrepancy times the number of rows hardly varies around its mean, a `share` of all positions. The
        mean is half-way between two sizes, so that one size fits most batches. On average 1/64 of the batch is padding.
        """
        positions = self.predicted.numel()
        unit = max(1, positions // ROW_BUCKETS)
        above_mean = ROW_ALIGNMENT * round(share * positions / ROW_ALIGNMENT) + unit // 2
        missing = min((above_mean - len(self.rows)) % unit, positions - len(self.rows))
        others = (~self.predicted).flatten().nonzero()[:missing, 0]
        return replace(self, rows=torch.cat([self.rows, others]))

    @property
    def row_mask(self) -> Tensor:
        """[N] False at padding rows."""
        return self.predicted.flatten()[self.rows]

    @property
    def row_weight(self) -> Tensor:
        """[N] the weight of each row's sequence, 0 at padding rows."""
        assert self.weight is not None
        return self.weight[self.rows // self.predicted.shape[1]] * self.row_mask

    def scatter(self, values_N: Tensor) -> Tensor:
        """[B, L] the values at the predicted positions and zeros elsewhere."""
        flat = torch.zeros(self.predicted.numel(), dtype=values_N.dtype, device=values_N.device)
        values_BL = flat.scatter(0, self.rows, values_N).view(self.predicted.shape)
        return torch.where(self.predicted, values_BL, torch.zeros_like(values_BL))


@dataclass(frozen=True)
class LossTerms:
    """The three terms of the bound in nats, each [B, L] and zero where it does not apply.

    `diffusion` is an unbiased one-sample estimate, at every position, of the integral (or sum) over time. `counted`
    [B, L] are the positions that the bound is averaged over. `cross_entropy` [B, L] is -log x_theta(x) at the predicted
    positions. `loss` is the scalar that training minimises, summed over the batch. It alone has gradients, and its
    weights may differ from those of the bound. `masked` [B, L] and `mask_rate` [B] are None for AR.
    """

    diffusion: Tensor
    reconstruction: Tensor
    prior: Tensor
    counted: Tensor
    cross_entropy: Tensor
    loss: Tensor
    masked: Tensor | None = None
    mask_rate: Tensor | None = None

    @classmethod
    def diffusion_only(
        cls, diffusion: Tensor, cross_entropy: Tensor, loss: Tensor, counted: Tensor, corruption: Corruption
    ) -> LossTerms:
        """Terms with a reconstruction and a prior of zero, as under carry-over and alpha(1) = 0."""
        zero = torch.zeros_like(cross_entropy)
        masked, mask_rate = corruption.predicted, corruption.mask_rate
        return cls(diffusion, zero, zero, counted, cross_entropy, loss, masked, mask_rate)

    @property
    def nelbo(self) -> Tensor:
        """[B, L] nats of the bound at every position."""
        return self.diffusion + self.reconstruction + self.prior

    @property
    def total(self) -> Tensor:
        """Nats of the whole batch, a scalar."""
        return self.nelbo.sum()

    @property
    def count(self) -> Tensor:
        """The number of counted tokens, a scalar."""
        return self.counted.sum()

    @property
    def per_token(self) -> Tensor:
        """The bound in nats per counted token, masked or not."""
        return self.total / self.count.clamp_min(1)

    def detach(self) -> LossTerms:
        """The same terms without gradients."""
        values: dict[str, Any] = {
            name: value if value is None else value.detach() for name, value in vars(self).items()
        }
        return LossTerms(**values)


class Objective(Component):
    """A bound or loss per token. A member implements `corrupt` and `terms`; the paper's ablations are its fields."""

    causal: ClassVar[bool] = False
    """Whether the network must be autoregressive."""
    exact: ClassVar[bool] = False
    """Whether the value is the likelihood itself, without Monte-Carlo noise."""
    is_bound: ClassVar[bool] = True
    """Whether it is a bound on -log p of a text; if not, its `estimators` are."""
    trains_planner: ClassVar[bool] = False
    """Whether it trains the planner of a network whose other weights are frozen."""
    denominator: ClassVar[str] = TEXT_TOKENS
    """What figures per token divide by."""
    predicts_scores: ClassVar[bool] = False
    """Whether the network learns unnormalised scores."""

    @property
    def needs_mask_logit(self) -> bool:
        """Whether the mask token takes part in the softmax."""
        return False

    @property
    def needs_visible_rows(self) -> bool:
        """Whether visible positions are predicted too."""
        return False

    @property
    def evaluation_objective(self) -> Objective:
        """The objective by which checkpoints of a training run are evaluated."""
        return self

    @abstractmethod
    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        """Apply one draw of the noise to a batch, on the device of the batch."""

    @abstractmethod
    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        """Call the network on a corrupted batch and return the terms of the bound."""

    def loss(self, denoiser: Denoiser, batch: Batch, schedule: Schedule, noise: Noise) -> LossTerms:
        """The terms of the bound for one draw of the noise: `corrupt`, then `terms`."""
        return self.terms(denoiser, batch, self.corrupt(batch, schedule, noise, denoiser.config))

    def counted(self, batch: Batch, config: DenoiserConfig) -> Tensor:
        """[B, L] the positions that the loss is averaged over; they do not depend on the noise."""
        return batch.target_mask

    def estimators(self) -> dict[str, Objective]:
        """The bounds to report for a model trained on this objective. The first is the headline; all must agree."""
        return {self.__class__.__name__.lower(): self}


def hidden_states(denoiser: Denoiser, batch: Batch, corruption: Corruption) -> Tensor:
    """[B, L, D] the hidden states of the network for z_t."""
    z_BL = corruption.z
    if z_BL is None:
        z_BL = mask_tokens(batch, corruption.predicted, denoiser.config.mask_token_id)
    assert corruption.mask_rate is not None
    return denoiser.hidden(z_BL, alpha=1.0 - corruption.mask_rate, attention_mask=batch.key_padding_mask)


def reduce_logits(
    denoiser: Denoiser, hidden_BLD: Tensor, batch: Batch, rows_N: Tensor, reduce: Reduce, mask_logit: bool = False
) -> Tensor:
    """[N, ...] `reduce(logits_NV, targets_N)` at rows of the flattened batch, computed in chunks."""
    head = partial(denoiser.head, mask_logit=mask_logit)
    hidden_ND, targets_N = hidden_BLD.flatten(0, 1)[rows_N], batch.input_ids.flatten()[rows_N]
    return reduce_rows(head, hidden_ND, targets_N, reduce, denoiser.config.vocab_size)


def time_grid(t: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """s(i) = (i - 1)/T and t(i) = i/T with i = ceil(t T) for a uniform t.

    They are in float64: alpha_s - alpha_t cancels, and in float32 its ratio would be off by about T 6e-8.
    """
    i = torch.ceil(t.double() * steps).clamp(1, steps)
    return (i - 1) / steps, i / steps
