"""One optimiser step. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from unmask.batch import Batch
from unmask.config import OptimizerConfig
from unmask.objectives.base import LossTerms, Noise, Objective
from unmask.schedules import Schedule
from unmask.training.data import MicroBatch
from unmask.training.ema import EMA
from unmask.training.meter import Meter
from unmask.training.optimizer import adamw, learning_rate, set_learning_rate
from unmask.training.schedule_learner import keeper_of


class Loss(nn.Module):
    """The objective around its network. Its forward pass is what mixed precision and data parallelism wrap."""

    def __init__(self, denoiser: nn.Module, objective: Objective, schedule: Schedule) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.objective = objective
        self.schedule = schedule

    def forward(self, batch: Batch, noise: Noise) -> LossTerms:
        denoiser: Any = self.denoiser
        return self.objective.loss(denoiser, batch, self.schedule, noise)


def trained(denoiser: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name, in the network's order."""
    return {name: parameter for name, parameter in denoiser.named_parameters() if parameter.requires_grad}


class Stepper:
    """A network with its optimiser, its average, its meter and the keeper of its schedule."""

    def __init__(
        self,
        accelerator: Accelerator,
        denoiser: nn.Module,
        objective: Objective,
        schedule: Schedule,
        config: OptimizerConfig,
    ) -> None:
        self.accelerator = accelerator
        self.config = config
        self.denoiser = denoiser.to(accelerator.device).train()
        optimizer = adamw(trained(denoiser).values(), config, accelerator.device)
        self._bare_loss = Loss(denoiser, objective, schedule)
        self.loss, self.optimizer = accelerator.prepare(self._bare_loss, optimizer)
        self.parameters = trained(denoiser)
        self.ema = EMA(self.parameters, config.ema)
        self.meter = Meter(accelerator.device)
        self.keeper = keeper_of(schedule, accelerator.device)

    @property
    def schedule(self) -> Schedule:
        """The schedule of the next step."""
        return self._bare_loss.schedule

    def recall_schedule(self) -> None:
        """Go on with the schedule that a checkpoint has put back into the keeper's tensors."""
        self._bare_loss.schedule = self.keeper.recall()

    def step(self, micro_batches: Sequence[MicroBatch], step: int) -> None:
        """Step number `step` (0, 1, ...): gradients of the whole batch, clipped; AdamW; the average."""
        loss = self.gradients(micro_batches)
        grad_norm = self.accelerator.clip_grad_norm_(self.parameters.values(), self.config.clip)
        set_learning_rate(self.optimizer, learning_rate(self.config, step))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.update(step + 1)
        self.meter.end_step(step + 1, loss, grad_norm)
        self._bare_loss.schedule = self.keeper.end_step(step + 1, self.accelerator.reduce)

    def gradients(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Leave in the parameters the gradient of what is minimised, over the counted tokens of the global batch.

        Gradients of nats are summed over micro-batches and divided once, so it does not matter how the batch is cut.
        Returns the loss, a scalar.
        """
        device = self.accelerator.device
        nats, tokens = torch.zeros((), device=device), torch.zeros((), dtype=torch.int64, device=device)
        for number, micro_batch in enumerate(micro_batches, start=1):
            with nullcontext() if number == len(micro_batches) else self.accelerator.no_sync(self.loss):
                here = micro_batch.to(device)
                terms = self.loss(here.batch, here.noise)
                self.accelerator.backward(terms.trained)
            self.meter.add(terms)
            self.keeper.add(terms)
            nats += terms.total.detach()
            tokens += terms.count
        nats, tokens = self.accelerator.reduce((nats, tokens), reduction="sum")
        tokens = tokens.clamp_min(1)
        self._scale_gradients(self.accelerator.num_processes / tokens)
        return nats / tokens

    @torch.no_grad()
    def _scale_gradients(self, factor: Tensor) -> None:
        """Several processes average their gradients, hence their number in the factor; here they are to be summed."""
        torch._foreach_mul_([p.grad for p in self.parameters.values() if p.grad is not None], factor)
