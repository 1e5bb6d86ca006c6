"""What every objective takes and returns. An objective knows nothing of optimisers and data files."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unmask.batch import Batch
from unmask.losses import cross_entropy, reduce_rows, scatter_rows
from unmask.models.protocol import Denoiser, DenoiserConfig
from unmask.random import Integer, Purpose, uniform
from unmask.registry import Component
from unmask.schedules import Schedule


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
class LossTerms:
    """The three terms of the bound in nats, each [B, L], zero where they do not apply, and the counted positions.

    `diffusion` is a one-draw estimate of the integral (or sum) over time; it is unbiased for every position.
    `masked` [B, L] and `mask_rate` [B] tell what was masked; AR has neither.
    """

    diffusion: Tensor
    reconstruction: Tensor
    prior: Tensor
    counted: Tensor
    cross_entropy: Tensor
    masked: Tensor | None = None
    mask_rate: Tensor | None = None
    surrogate: Tensor | None = None
    """[B, L] what training minimises in the place of the bound, where an objective is asked to weigh otherwise."""

    @property
    def nelbo(self) -> Tensor:
        """[B, L] nats of the bound at every position."""
        return self.diffusion + self.reconstruction + self.prior

    @property
    def total(self) -> Tensor:
        """The nats of the whole batch, a scalar."""
        return self.nelbo.sum()

    @property
    def trained(self) -> Tensor:
        """What training minimises, summed over the batch: the bound, or the surrogate in its place."""
        return self.total if self.surrogate is None else self.surrogate.sum()

    @property
    def count(self) -> Tensor:
        """The number of counted tokens, a scalar."""
        return self.counted.sum()

    @property
    def per_token(self) -> Tensor:
        """The bound in nats per counted token, masked or not."""
        return self.total / self.count.clamp_min(1)


class Objective(Component):
    """A bound (or loss) per token. Members are frozen; the switches of the paper's ablations are their fields."""

    causal: ClassVar[bool] = False
    """Whether the network must be the causal twin."""

    exact: ClassVar[bool] = False
    """Whether the value is the likelihood itself and holds no Monte-Carlo noise."""

    @property
    def needs_mask_logit(self) -> bool:
        """Whether the mask token takes part in the softmax."""
        return False

    @property
    def needs_visible_rows(self) -> bool:
        """Whether visible positions are predicted too."""
        return False

    @abstractmethod
    def loss(self, denoiser: Denoiser, batch: Batch, schedule: Schedule, noise: Noise) -> LossTerms:
        """The terms of the bound for one draw of the noise."""

    def counted(self, batch: Batch, config: DenoiserConfig) -> Tensor:
        """[B, L] the positions that a loss is averaged over; they do not depend on the noise."""
        return batch.open

    def estimators(self) -> dict[str, Objective]:
        """How a model trained on this objective is judged. The first counts; the others must agree with it."""
        return {self.__class__.__name__.lower(): self}


def masked_cross_entropy(denoiser: Denoiser, z: Tensor, mask_rate: Tensor, batch: Batch, masked: Tensor) -> Tensor:
    """[B, L] -log x_theta(x) at masked positions under SUBS, 0 elsewhere. Only masked rows meet the vocabulary.

    `z` [B, L] corrupted tokens, `mask_rate` [B] = 1 - alpha_t. Zero-masking: the head has no output for the mask token.
    Carry-over: visible rows are not predicted at all.
    """
    hidden = denoiser.hidden(z, alpha=1.0 - mask_rate, attention_mask=batch.keys)
    nll = reduce_rows(denoiser.head, hidden[masked], batch.input_ids[masked], cross_entropy, denoiser.config.vocab_size)
    return scatter_rows(nll, masked)


def grid(t: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """s(i) and t(i) of the published grid t(i) = i / T, with i = ceil(t T) for a uniform t."""
    i = torch.ceil(t * steps).clamp(1, steps)
    return (i - 1) / steps, i / steps
