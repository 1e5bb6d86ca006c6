"""What every objective takes and returns. An objective knows nothing of optimisers and data files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.models.config import Denoiser, DenoiserConfig
from unmask.models.cross_entropy import scatter_rows, weighted_cross_entropy
from unmask.process import Batch, mask_tokens
from unmask.random import Integer, Purpose, uniform
from unmask.registry import Component
from unmask.schedules import Schedule

ROW_BUDGETS = 32
"""Numbers of rows that a batch may be padded to."""
ALIGNED = 64
"""Kernels are made for numbers of rows that can be divided by a power of two."""


@dataclass(frozen=True)
class Noise:
    """The random numbers of one batch: `t` [B] a time a sequence, `u` [B, L] a uniform a position."""

    t: Tensor
    u: Tensor

    @classmethod
    def draw(cls, seed: int, step: Integer, sample: Tensor, t: Tensor, length: int) -> Noise:
        """Noise of the samples `sample` [B] (their global index): the same whatever batch or process they are in."""
        position = torch.arange(length, device=sample.device)
        return cls(t, uniform(seed, Purpose.MASK, step, sample[:, None], position[None]))


@dataclass(frozen=True)
class Corruption:
    """What the noise makes of a batch before a network sees it: all that has to be known to ask the network.

    It needs no device, so it is made on the CPU while the steps before it run; then the number of rows is known there,
    and nobody has to wait for a GPU to count them.
    """

    predicted: Tensor
    """[B, L] the positions that are asked about: those that were masked; without noise, those that are counted."""
    rows: Tensor
    """[N] the same as places in the flattened batch, in order; after them come others that count nothing, if any."""
    mask_rate: Tensor | None = None
    """[B] 1 - alpha_t; None without noise."""
    weight: Tensor | None = None
    """[B] what the cross-entropy at t is multiplied by in the bound, where it is no more than that."""
    mask_rate_s: Tensor | None = None
    """[B] 1 - alpha_s at the step before, where the bound looks at it."""

    @classmethod
    def of(
        cls,
        predicted: Tensor,
        mask_rate: Tensor | None = None,
        weight: Tensor | None = None,
        mask_rate_s: Tensor | None = None,
    ) -> Corruption:
        """With the rows counted, which on a GPU waits for it."""
        return cls(predicted, predicted.flatten().nonzero()[:, 0], mask_rate, weight, mask_rate_s)

    def map(self, function: Callable[[Tensor], Tensor]) -> Corruption:
        """The same with every tensor put through a function: moved, pinned."""
        values: dict[str, Any] = {
            name: value if value is None else function(value) for name, value in vars(self).items()
        }
        return Corruption(**values)

    def pad_rows(self, share: float = 0.5) -> Corruption:
        """The same with rows that count nothing added, so that the number of rows takes few values and shapes repeat.

        With stratified times that number hardly varies around the mean `share` of the positions, which lies half-way
        between two values, so that one of them does for most batches; it costs a sixty-fourth of the batch on average.
        """
        positions = self.predicted.numel()
        unit = max(1, positions // ROW_BUDGETS)
        above_mean = ALIGNED * round(share * positions / ALIGNED) + unit // 2
        missing = min((above_mean - len(self.rows)) % unit, positions - len(self.rows))
        others = (~self.predicted).flatten().nonzero()[:missing, 0]
        return replace(self, rows=torch.cat([self.rows, others]))

    @property
    def row_mask(self) -> Tensor:
        """[N] False at the rows that count nothing."""
        return self.predicted.flatten()[self.rows]

    @property
    def row_weight(self) -> Tensor:
        """[N] the weight of each row's sequence, 0 at the rows that count nothing."""
        assert self.weight is not None
        return self.weight[self.rows // self.predicted.shape[1]] * self.row_mask

    def scatter(self, values_N: Tensor) -> Tensor:
        """[B, L] the values at the positions that were asked about, and zeros elsewhere."""
        everywhere = scatter_rows(values_N, self.rows, self.predicted.shape)
        return torch.where(self.predicted, everywhere, torch.zeros_like(everywhere))


@dataclass(frozen=True)
class LossTerms:
    """The three terms of the bound in nats, each [B, L], zero where they do not apply, and the counted positions.

    `diffusion` is a one-draw estimate of the integral (or sum) over time; it is unbiased for every position. `loss`
    is a scalar, what training minimises, summed over the batch: gradients flow through it alone, and it may be weighted
    otherwise than the bound. `masked` [B, L] and `mask_rate` [B] tell what was masked; AR has neither.
    """

    diffusion: Tensor
    reconstruction: Tensor
    prior: Tensor
    counted: Tensor
    cross_entropy: Tensor
    loss: Tensor
    masked: Tensor | None = None
    mask_rate: Tensor | None = None

    @property
    def nelbo(self) -> Tensor:
        """[B, L] nats of the bound at every position."""
        return self.diffusion + self.reconstruction + self.prior

    @property
    def total(self) -> Tensor:
        """The nats of the whole batch, a scalar."""
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
        """The same figures, without the graph through which gradients flow."""
        values: dict[str, Any] = {
            name: value if value is None else value.detach() for name, value in vars(self).items()
        }
        return LossTerms(**values)


class Objective(Component):
    """A bound (or loss) per token. Members are frozen; the switches of the paper's ablations are their fields."""

    causal: ClassVar[bool] = False
    """Whether the network must be the causal twin."""

    exact: ClassVar[bool] = False
    """Whether the value is the likelihood itself and holds no Monte-Carlo noise."""

    trains_planner: ClassVar[bool] = False
    """Whether it trains a planner beside a network that stays as it is, and bounds no text."""
    predicts_scores: ClassVar[bool] = False
    """Whether it teaches the network scores, whose mass counts, and not only predictions."""

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
        """The objective by which the checkpoints of a run are judged."""
        return self

    @abstractmethod
    def corrupt(self, batch: Batch, schedule: Schedule, noise: Noise, config: DenoiserConfig) -> Corruption:
        """What one draw of the noise makes of a batch, wherever the batch lies."""

    @abstractmethod
    def terms(self, denoiser: Denoiser, batch: Batch, corruption: Corruption) -> LossTerms:
        """The terms of the bound, by one or more calls of the network."""

    def loss(self, denoiser: Denoiser, batch: Batch, schedule: Schedule, noise: Noise) -> LossTerms:
        """Both in a row: the terms of the bound for one draw of the noise."""
        return self.terms(denoiser, batch, self.corrupt(batch, schedule, noise, denoiser.config))

    def counted(self, batch: Batch, config: DenoiserConfig) -> Tensor:
        """[B, L] the positions that a loss is averaged over; they do not depend on the noise."""
        return batch.target_mask

    def estimators(self) -> dict[str, Objective]:
        """How a model trained on this objective is judged. The first counts; the others must agree with it."""
        return {self.__class__.__name__.lower(): self}


def rows_of_masked(denoiser: Denoiser, batch: Batch, corruption: Corruption) -> Tensor:
    """[B, L, D] what the network makes of z_t, for its head."""
    z = mask_tokens(batch, corruption.predicted, denoiser.config.mask_token_id)
    assert corruption.mask_rate is not None
    return denoiser.hidden(z, alpha=1.0 - corruption.mask_rate, attention_mask=batch.key_padding_mask)


def masked_cross_entropy(
    denoiser: Denoiser, batch: Batch, corruption: Corruption, flat: bool = False
) -> tuple[Tensor, Tensor]:
    """-log x_theta(x) at masked positions under SUBS: its sum, weighted as the bound is or not at all, and [N] it.

    Only masked rows meet the vocabulary. Zero-masking: the head has no output for the mask token. Carry-over: visible
    rows are not predicted at all.
    """
    hidden = rows_of_masked(denoiser, batch, corruption)
    weights = corruption.row_mask.to(torch.float32) if flat else corruption.row_weight
    return weighted_cross_entropy(denoiser, hidden, corruption.rows, batch.input_ids, weights)


def grid(t: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """s(i) and t(i) of the published grid t(i) = i / T, with i = ceil(t T) for a uniform t."""
    i = torch.ceil(t * steps).clamp(1, steps)
    return (i - 1) / steps, i / steps
