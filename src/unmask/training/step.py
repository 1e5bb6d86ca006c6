"""One optimiser step, of this process's part of the global batch. Nothing here waits for the device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor, nn

from unmask.config import TrainingConfig
from unmask.models.inference import CudaGraph, compile_blocks
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective
from unmask.optimizers.base import OptimizerComponent, set_learning_rate
from unmask.process import Batch
from unmask.schedules import Schedule
from unmask.training.data_feed import MicroBatch
from unmask.training.distributed import compiles, layout_of, opened, precision_of, whole
from unmask.training.ema import EMA
from unmask.training.metrics import Meter, predicted_share
from unmask.training.schedule_learner import keeper_of

CALLS_BEFORE_RECORDING = 2
MOST_SHAPES = 4
"""Recordings that are kept; what is rarer than that runs as it is."""

Work = Callable[[MicroBatch, Tensor], LossTerms]


class Recorder:
    """Does `work(micro_batch, scale)`, which leaves gradients in the parameters, by recordings where shapes repeat.

    Gradients must be zeroed where they lie between steps, never dropped.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._seen: dict[Any, int] = {}
        self._recordings: dict[Any, _Passes] = {}

    def __call__(self, micro_batch: MicroBatch, scale: Tensor) -> LossTerms:
        kinds = [(name, tensor.shape, tensor.dtype) for name, tensor in _tensors(micro_batch).items()]
        shapes = (*kinds, micro_batch.batch.has_pads)
        if shapes not in self._recordings and not self._is_due(shapes):
            return self._work(micro_batch, scale)
        if shapes not in self._recordings:
            beside = next((kept.recording for kept in self._recordings.values()), None)
            self._recordings[shapes] = _Passes(self._work, micro_batch, scale, beside)
        return self._recordings[shapes](micro_batch, scale)

    def forget(self) -> None:
        """Let go of all recordings, and of the memory that they hold from one call to the next."""
        self._recordings.clear()
        self._seen.clear()

    def _is_due(self, shapes: Any) -> bool:
        """Whether this shape has been seen often enough to be worth a recording, and everything it needs is made."""
        self._seen[shapes] = self._seen.get(shapes, 0) + 1
        return self._seen[shapes] > CALLS_BEFORE_RECORDING and len(self._recordings) < MOST_SHAPES


class _Passes:
    """Both passes of micro-batches of one shape, in the memory of those of another.

    They have been made before, so that nothing is warmed up. Graphs of theirs that are garbage by now go first: what
    adds up gradients would live on in them with another stream (see `Stepper`).
    """

    def __init__(self, work: Work, micro_batch: MicroBatch, scale: Tensor, beside: CudaGraph | None) -> None:
        self._micro_batch = micro_batch.map(Tensor.clone)
        self._scale = scale.clone()
        gc.collect()
        self.recording = CudaGraph(lambda: work(self._micro_batch, self._scale), warm_up=0, pool_of=beside)

    def __call__(self, micro_batch: MicroBatch, scale: Tensor) -> LossTerms:
        given = _tensors(micro_batch)
        for name, kept in _tensors(self._micro_batch).items():
            kept.copy_(given[name])
        self._scale.copy_(scale)
        return self.recording()


def _tensors(micro_batch: MicroBatch) -> dict[str, Tensor]:
    """What a pass reads, by name."""
    read = {**vars(micro_batch.batch), **(vars(micro_batch.corruption) if micro_batch.corruption else {})}
    return {name: value for name, value in read.items() if isinstance(value, Tensor)}


class Loss(nn.Module):
    """The objective around its network. Its forward pass is what mixed precision and parallelism wrap."""

    _no_split_modules = ("Block",)

    def __init__(self, denoiser: nn.Module, objective: Objective, precision: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.precision = precision
        self.denoiser = denoiser
        self.objective = objective

    def forward(
        self, batch: Batch, corruption: Corruption, estimator: Objective | None = None
    ) -> dict[str, Tensor | None]:
        """The fields of `LossTerms`, of the objective or of one of its estimators, as a mapping that wrappers see."""
        denoiser: Any = self.denoiser
        chosen = estimator or self.objective
        with self.autocast(batch.input_ids.device):
            return dict(vars(chosen.terms(denoiser, batch, corruption)))

    def autocast(self, device: torch.device) -> torch.autocast:
        """What it computes in."""
        return torch.autocast(device.type, self.precision, enabled=self.precision != torch.float32)


def trained(denoiser: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn, by name, in the network's order."""
    return {name: parameter for name, parameter in denoiser.named_parameters() if parameter.requires_grad}


class TrainStep:
    """A network with its optimiser, its average, its meter and the keeper of its schedule."""

    def __init__(
        self,
        accelerator: Accelerator,
        denoiser: nn.Module,
        objective: Objective,
        schedule: Schedule,
        config: OptimizerComponent,
        training: TrainingConfig,
    ) -> None:
        self.accelerator = accelerator
        self.objective = objective
        self.steps = training.steps
        self.layout = layout_of(accelerator)
        self.denoiser: Any = denoiser.to(accelerator.device).train()
        self.config, notice = config.resolve(trained(denoiser), self.layout.flattened_by)
        self.notices = [notice] if notice else []
        optimizer = self.config.build(trained(denoiser), accelerator.device)
        self.compiled = compiles(training, accelerator)
        if self.compiled:
            compile_blocks(denoiser)
        self._bare_loss = Loss(denoiser, objective, precision_of(training))
        self.loss, self.optimizer = accelerator.prepare(self._bare_loss, optimizer)
        self.parameters = trained(denoiser)
        self.ema = EMA(self.parameters, config.ema)
        self.meter = Meter(accelerator.device)
        self.keeper = keeper_of(schedule, accelerator.device)
        self.schedule = schedule
        """The schedule of the next step."""
        self._predicted_share = predicted_share(objective, schedule)
        self._recorder = None if training.deterministic else self._make_recorder()

    @property
    def optimizer_name(self) -> str:
        """Who moves the weights."""
        return self.config.name  # type: ignore[attr-defined]

    def recall_schedule(self) -> None:
        """Go on with the schedule that a checkpoint has put back into the keeper's tensors."""
        self.schedule = self.keeper.recall()

    @contextmanager
    def averaged(self) -> Iterator[Any]:
        """The network with its averaged weights, for a while, so that it can be called itself. All processes must."""
        with self.ema.applied(), opened(self.loss), self._bare_loss.autocast(self.accelerator.device):
            yield self.denoiser

    def step(self, micro_batches: Sequence[MicroBatch], step: int) -> None:
        """Step number `step` (0, 1, ...): gradients of the whole batch, clipped; the optimiser; the average."""
        set_learning_rate(self.optimizer, self.config.rate(step, self.steps))
        loss = self.gradients(micro_batches)
        grad_norm = self.accelerator.clip_grad_norm_(self.parameters.values(), self.config.clip)
        self.optimizer.step()
        self._forget_gradients()
        self.ema.update(step + 1)
        self.meter.end_step(step + 1, loss, whole(torch.as_tensor(grad_norm, device=loss.device)))
        self.schedule = self.keeper.end_step(step + 1, self._sum)

    def gradients(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Leave in the parameters the gradient of what is minimised, over the counted tokens of the global batch.

        Returns the loss, a scalar. How the batch is cut into processes and micro-batches does not matter: each part's
        nats are divided by the tokens of the whole, and undone is what wrappers do, who average over both.
        """
        here = [micro_batch.to(self.accelerator.device) for micro_batch in micro_batches]
        tokens = self._tokens(here)
        scale = self.accelerator.num_processes * self.accelerator.gradient_accumulation_steps / tokens
        nats = torch.zeros((), device=self.accelerator.device)
        for micro_batch in here:
            with self.accelerator.accumulate(self.loss):
                terms = self._passes_of(micro_batch)(micro_batch, scale)
            self.meter.add(terms)
            self.keeper.add(terms)
            nats += terms.total
        return self._sum(nats) / tokens

    def let_go(self) -> None:
        """Give back the memory that passes leave behind: gradients, and recordings with all that they compute in."""
        for parameter in self.parameters.values():
            parameter.grad = None
        if self._recorder is not None:
            self._recorder.forget()

    def terms(self, batch: Batch, corruption: Corruption, estimator: Objective | None = None) -> LossTerms:
        """The terms of a batch on the device, computed where the wrappers want it."""
        return LossTerms(**self.loss(batch, corruption, estimator))

    def corrupt(self, batch: Batch, noise: Noise, estimator: Objective | None = None) -> Corruption:
        """What noise makes of a batch under the schedule of the next step."""
        return (estimator or self.objective).corrupt(batch, self.schedule, noise, self.denoiser.config)

    def corrupt_ahead(self, batch: Batch, noise: Noise) -> Corruption:
        """The same for batches that are made ahead of their step; for a GPU in few shapes."""
        corruption = self.corrupt(batch, noise)
        return corruption.pad_rows(self._predicted_share) if self.compiled else corruption

    def _backward(self, micro_batch: MicroBatch, scale: Tensor) -> LossTerms:
        """Both passes of a micro-batch, whose gradients are added to those that are there.

        What it returns must not hold on to the graph: the nodes that add up gradients would live on with the stream
        that they were made in, and no pass of another stream can be recorded while they do (pytorch/pytorch#180090).
        """
        terms = self.terms(micro_batch.batch, self._corruption(micro_batch))
        self.accelerator.backward(terms.loss * scale)
        return terms.detach()

    def _passes_of(self, micro_batch: MicroBatch) -> Callable[[MicroBatch, Tensor], LossTerms]:
        """Who makes both passes of a micro-batch; what is not masked yet cannot be recorded."""
        return self._backward if self._recorder is None or micro_batch.corruption is None else self._recorder

    def _make_recorder(self) -> Recorder | None:
        """Where one process trains on a GPU, shapes repeat and nothing but the network acts on gradients.

        A recorded dropout counts its random numbers otherwise than one that is not: a run that has to be the same after
        a resume does without.
        """
        lone = self.accelerator.distributed_type == DistributedType.NO and self.accelerator.device.type == "cuda"
        return Recorder(self._backward) if self.compiled and lone and not self.keeper.learns else None

    def _forget_gradients(self) -> None:
        keep = self._recorder is not None
        self.optimizer.zero_grad(set_to_none=not keep)

    def _corruption(self, micro_batch: MicroBatch) -> Corruption:
        """As it was made ahead, or made now."""
        return micro_batch.corruption or self.corrupt(micro_batch.batch, micro_batch.noise)

    def _tokens(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """The counted tokens of the global batch, at least 1."""
        config = self.denoiser.config
        counts = [self.objective.counted(micro_batch.batch, config).sum() for micro_batch in micro_batches]
        return self._sum(torch.stack(counts).sum()).clamp_min(1)

    def _sum(self, value: Tensor) -> Tensor:
        return self.accelerator.reduce(value, reduction="sum")
