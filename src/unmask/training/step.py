"""One optimizer step: forward and backward on micro-batches, clipping, optimizer, EMA. Never waits for the device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor, nn

from unmask.config import TrainingConfig
from unmask.data.rows import TEXT_TOKENS
from unmask.models.inference import CudaGraph, compile_blocks, has_triton, select_dtype
from unmask.objectives.base import Corruption, LossTerms, Noise, Objective
from unmask.optimizers.base import OptimizerComponent
from unmask.process import Batch
from unmask.schedules import Learned, Schedule
from unmask.training.data_feed import MicroBatch
from unmask.training.distributed import DeepSpeedLayout, ParameterLayout, full_tensor, unsharded
from unmask.training.ema import EMA
from unmask.training.metrics import TrainingMetrics, predicted_share
from unmask.training.schedule_learner import ScheduleLearner

CALLS_BEFORE_CAPTURE = 2
MOST_SHAPES = 4
"""CUDA graphs that are kept. Micro-batches of other shapes run without one."""

Pass = Callable[[MicroBatch, Tensor], LossTerms]


class TrainStep:
    """A network with its optimizer, EMA, metrics and, if it learns, its schedule."""

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
        self.schedule = schedule
        """The schedule of the next step."""
        self.steps = training.steps
        self.seed = training.seed
        deepspeed = accelerator.distributed_type == DistributedType.DEEPSPEED
        self.layout = DeepSpeedLayout() if deepspeed else ParameterLayout()
        self.denoiser: Any = denoiser.to(accelerator.device).train()
        trainable = trainable_parameters(self.denoiser)
        self.config, notice = config.resolve(trainable, self.layout.flattened_by)
        self.notices = [notice] if notice else []
        optimizer = self.config.build(trainable, accelerator.device)
        on_gpu = accelerator.device.type == "cuda"
        self.compiled = on_gpu and has_triton() if training.compile == "auto" else training.compile
        if self.compiled:
            compile_blocks(denoiser)
        self._unwrapped_loss = Loss(denoiser, objective, select_dtype(training.precision, accelerator.device))
        self.loss, self.optimizer = accelerator.prepare(self._unwrapped_loss, optimizer)
        self.parameters = trainable_parameters(denoiser)  # others than before if they are sharded
        self.ema = EMA(self.parameters, config.ema)
        self.metrics = TrainingMetrics(accelerator.device)
        self.schedule_learner: ScheduleLearner | None = None
        if isinstance(schedule, Learned) and schedule.every is not None:
            self.schedule_learner = ScheduleLearner(schedule, schedule.every, accelerator.device)
        self._predicted_share = predicted_share(objective, schedule)
        self._captured_passes: CapturedPasses | None = None
        single_gpu = on_gpu and accelerator.distributed_type == DistributedType.NO
        # Dropout draws other numbers inside a CUDA graph than outside, so deterministic runs do without graphs.
        may_capture = getattr(denoiser, "supports_cuda_graphs", True) and not training.deterministic
        if self.compiled and single_gpu and self.schedule_learner is None and may_capture:
            self._captured_passes = CapturedPasses(self._forward_backward)

    @property
    def optimizer_name(self) -> str:
        """The name of the optimizer in use, which may replace the recipe's."""
        return self.config.name  # type: ignore[attr-defined]

    def step(self, micro_batches: Sequence[MicroBatch], step: int) -> None:
        """Take step number `step` (0, 1, ...) on this process's micro-batches of the global batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(step, self.steps)
        annealing = getattr(self.denoiser, "annealing", None)
        if annealing is not None:
            annealing.seek(step, self.seed, self.accelerator.device)
        loss = self.gradients(micro_batches)
        grad_norm = self.accelerator.clip_grad_norm_(self.parameters.values(), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self._captured_passes is None)
        self.ema.update(step + 1)
        self.metrics.end_step(step + 1, loss, full_tensor(torch.as_tensor(grad_norm, device=loss.device)))
        if self.schedule_learner is not None:
            self.schedule = self.schedule_learner.end_step(step + 1, self._sum)

    def gradients(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Add the gradient of the loss per counted token of the global batch to the parameters; return that loss.

        The loss of a micro-batch is divided by the tokens of the global batch and scaled to cancel the averaging by DDP
        and accumulation, so the gradient does not depend on how the batch is split.
        """
        moved = [micro_batch.to(self.accelerator.device) for micro_batch in micro_batches]
        counts = [self.objective.counted(one.batch, self.denoiser.config).sum() for one in moved]
        tokens = self._sum(torch.stack(counts).sum()).clamp_min(1)
        scale = self.accelerator.num_processes * self.accelerator.gradient_accumulation_steps / tokens
        nats = torch.zeros((), device=self.accelerator.device)
        for micro_batch in moved:
            captured = self._captured_passes is not None and micro_batch.corruption is not None
            run: Pass = self._captured_passes if captured else self._forward_backward  # type: ignore[assignment]
            with self.accelerator.accumulate(self.loss):
                terms = run(micro_batch, scale)
            self.metrics.add(terms, micro_batch.padding if self.objective.denominator == TEXT_TOKENS else None)
            if self.schedule_learner is not None:
                self.schedule_learner.add(terms)
            nats += terms.total
        return self._sum(nats) / tokens

    def _forward_backward(self, micro_batch: MicroBatch, scale: Tensor) -> LossTerms:
        """Run forward and backward on one micro-batch.

        The result is detached from the graph: a node that accumulates gradients keeps the stream it was made in, and no
        pass on another stream can be captured while it lives (pytorch/pytorch#180090).
        """
        corruption = micro_batch.corruption or self.corrupt(micro_batch.batch, micro_batch.noise)
        terms = self.terms(micro_batch.batch, corruption)
        self.accelerator.backward(terms.loss * scale)
        return terms.detach()

    def terms(self, batch: Batch, corruption: Corruption, estimator: Objective | None = None) -> LossTerms:
        """The loss terms of a batch on the device, through the wrapped network."""
        return LossTerms(**self.loss(batch, corruption, estimator))

    def corrupt(self, batch: Batch, noise: Noise, estimator: Objective | None = None) -> Corruption:
        """Mask a batch by the schedule of the next step."""
        return (estimator or self.objective).corrupt(batch, self.schedule, noise, self.denoiser.config)

    def corrupt_ahead(self, batch: Batch, noise: Noise) -> Corruption:
        """Mask a batch ahead of its step; for a compiled network, padded to few shapes."""
        corruption = self.corrupt(batch, noise)
        return corruption.pad_rows(self._predicted_share) if self.compiled else corruption

    @contextmanager
    def averaged(self) -> Iterator[Any]:
        """The network with EMA weights, callable without its wrappers. All processes must enter it."""
        with self.ema.applied(), unsharded(self.loss), self._unwrapped_loss.autocast(self.accelerator.device):
            yield self.denoiser

    def release_memory(self) -> None:
        """Free gradients and CUDA graphs."""
        for parameter in self.parameters.values():
            parameter.grad = None
        if self._captured_passes is not None:
            self._captured_passes.clear()

    def _sum(self, value: Tensor) -> Tensor:
        return self.accelerator.reduce(value, reduction="sum")


class Loss(nn.Module):
    """The objective applied to its network: the module that Accelerate wraps for parallelism."""

    def __init__(self, denoiser: nn.Module, objective: Objective, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.denoiser = denoiser
        self.objective = objective
        self._no_split_modules = denoiser._no_split_modules

    def forward(
        self, batch: Batch, corruption: Corruption, estimator: Objective | None = None
    ) -> dict[str, Tensor | None]:
        """The fields of `LossTerms` of the objective or of an estimator, as a dict for the wrappers."""
        denoiser: Any = self.denoiser
        with self.autocast(batch.input_ids.device):
            return dict(vars((estimator or self.objective).terms(denoiser, batch, corruption)))

    def autocast(self, device: torch.device) -> torch.autocast:
        """Autocast to the dtype of matrix products."""
        return torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)


def trainable_parameters(denoiser: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require gradients, by name, in the network's order."""
    return {name: parameter for name, parameter in denoiser.named_parameters() if parameter.requires_grad}


class CapturedPasses:
    """Runs forward and backward of micro-batches as CUDA graphs once their shape has been seen often enough.

    Gradients must be zeroed in place between steps, never set to None.
    """

    def __init__(self, run: Pass) -> None:
        self._run = run
        self._seen: dict[Any, int] = {}
        self._passes: dict[Any, _CapturedPass] = {}

    def __call__(self, micro_batch: MicroBatch, scale: Tensor) -> LossTerms:
        key = (
            *((name, tensor.shape, tensor.dtype) for name, tensor in _inputs(micro_batch).items()),
            micro_batch.batch.has_pads,
        )
        if key not in self._passes:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= CALLS_BEFORE_CAPTURE or len(self._passes) >= MOST_SHAPES:
                return self._run(micro_batch, scale)
            other = next((one.graph for one in self._passes.values()), None)
            self._passes[key] = _CapturedPass(self._run, micro_batch, scale, other)
        return self._passes[key](micro_batch, scale)

    def clear(self) -> None:
        """Free all graphs and their memory."""
        self._passes.clear()
        self._seen.clear()


class _CapturedPass:
    """The CUDA graph of one shape, which shares its memory pool with another one.

    The pass has run before, so it needs no warm-up. Old autograd graphs are collected first, since their nodes that
    accumulate gradients keep another stream (see `TrainStep._forward_backward`).
    """

    def __init__(self, run: Pass, micro_batch: MicroBatch, scale: Tensor, other: CudaGraph | None) -> None:
        self._micro_batch = micro_batch.map(Tensor.clone)
        self._scale = scale.clone()
        gc.collect()
        self.graph = CudaGraph(lambda: run(self._micro_batch, self._scale), warm_up=0, pool_of=other)

    def __call__(self, micro_batch: MicroBatch, scale: Tensor) -> LossTerms:
        given = _inputs(micro_batch)
        for name, static in _inputs(self._micro_batch).items():
            static.copy_(given[name])
        self._scale.copy_(scale)
        return self.graph()


def _inputs(micro_batch: MicroBatch) -> dict[str, Tensor]:
    """The tensors that a pass reads, by name."""
    fields = {**vars(micro_batch.batch), **(vars(micro_batch.corruption) if micro_batch.corruption else {})}
    return {name: value for name, value in fields.items() if isinstance(value, Tensor)}
