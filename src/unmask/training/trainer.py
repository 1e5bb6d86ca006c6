"""`train`: from a recipe to a run folder that opens as a checkpoint. The training loop is `Trainer.run`."""

from __future__ import annotations

import math
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from unmask.checkpoint import CheckpointConfig
from unmask.config import Recipe
from unmask.data.rows import Integers, Rows
from unmask.data.split import prepare
from unmask.data.tokenizers import complement_map
from unmask.errors import UnmaskError, is_out_of_memory
from unmask.io import atomic_text
from unmask.likelihood import Bound
from unmask.training.advice import Advisor, Baseline, advice_on_data
from unmask.training.callbacks import Callback, CallbackList, RunLogger, Trackers
from unmask.training.checkpointing import (
    RECIPE,
    Resume,
    ResumePoint,
    TrainerState,
    check_same_data,
    find_latest,
    find_resume_point,
    fingerprint,
    improves,
    load_state,
    publish,
    run_lock,
    save_state,
)
from unmask.training.data_feed import DataFeed, split_batch
from unmask.training.distributed import Distributed, deterministic_kernels, local, make_accelerator, seed_process
from unmask.training.memory import step_or_explain
from unmask.training.metrics import Throughput, Timer
from unmask.training.step import TrainStep
from unmask.training.validation import PlannerMetrics, generate_samples, measure_bound, measure_planner

SAME_SIGNAL_SECONDS = 3.0
"""A second signal within this time is the same one: launchers pass on what the terminal has already sent."""
SHOWN_SAMPLES = 8


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: `path` opens as its last checkpoint, `bound` is the validation bound of its weights.

    When a planner is trained, `bound` is its loss per masked position and `planner_metrics` are its quality.
    """

    path: Path
    steps: int
    seconds: float
    bound: Bound
    planner_metrics: PlannerMetrics | None = None

    def as_dict(self) -> dict[str, Any]:
        values = {"path": str(self.path), "steps": self.steps, "seconds": self.seconds, "bound": self.bound.as_dict()}
        if self.planner_metrics is not None:
            values["foresight"] = self.planner_metrics.as_dict()
        return values


class Interrupted(Exception):
    """The run was stopped by a signal and saved after `step` steps in the folder `path`.

    A program that ends for this reason should exit with `exit_code`: 128 plus the number of the signal.
    """

    def __init__(self, path: Path, step: int, number: int = signal.SIGINT) -> None:
        self.path = path
        self.step = step
        self.exit_code = 128 + number
        folder = shlex.quote(str(path))
        recipe = shlex.quote(str(path / RECIPE))
        self.resume_command = f"unmask train {recipe} --out {folder} --resume"
        super().__init__(path, step, number)  # the arguments, which pickle needs

    def __str__(self) -> str:
        return f"Stopped and saved at step {self.step}; resume with: {self.resume_command}"


def train(
    recipe: Recipe, out: str | Path, *, resume: Resume = False, callbacks: Sequence[Callback] = ()
) -> TrainingResult:
    """Train into the folder `out`, which must be new, or with `resume` continue from its newest checkpoint.

    `resume="auto"` starts a new run if there is no checkpoint and skips damaged ones. Ctrl-C, SIGTERM and SIGHUP save a
    checkpoint after the current step and raise `Interrupted`. Processes started by `accelerate launch` or `torchrun`
    train together.
    """
    out = Path(out)
    check_fit(recipe.model, recipe.objective, recipe.data.policy)
    trackers = Trackers(recipe.training.trackers, out, recipe.model_dump(mode="json"))
    accelerator = make_accelerator(recipe.training, recipe.optimizer.clip)
    distributed = Distributed(accelerator)
    listeners = CallbackList([trackers, *callbacks] if distributed.is_main else [])
    with ExitStack() as held, deterministic_kernels(recipe.training.deterministic), closing(listeners):
        distributed.on_main(lambda: held.enter_context(run_lock(out)))
        resume_point = distributed.on_main(lambda: find_resume_point(out, recipe, resume))
        components = build_components(recipe, distributed, listeners.on_data)
        trainer = Trainer(recipe, out, components, listeners, accelerator, distributed)
        if resume_point is not None:
            trainer.resume(resume_point)
        distributed.on_main(lambda: atomic_text(out / RECIPE, recipe.to_yaml()))
        return trainer.run()


class Trainer:
    """A training run: its components, its progress and the loop."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        components: Components,
        callbacks: Callback,
        accelerator: Accelerator,
        distributed: Distributed,
    ) -> None:
        self.recipe = recipe
        self.config = config = recipe.training
        self.out = out
        self.components = components
        self.callbacks = callbacks
        self.distributed = distributed
        denoiser, rows, objective, schedule = components.denoiser, components.train, recipe.objective, recipe.schedule
        self.train_step = TrainStep(accelerator, denoiser, objective, schedule, recipe.optimizer, config)
        seed_process(distributed, config.seed)
        rank, world_size = distributed.rank, distributed.world_size
        self.feed = DataFeed(
            rows=rows,
            batch_size=config.batch_size,
            places=split_batch(config.batch_size, config.accumulation, rank, world_size),
            seed=config.seed,
            data_seed=recipe.data.seed,
            corrupt=self.train_step.corrupt_ahead if self.train_step.schedule_learner is None else None,
            pin=accelerator.device.type == "cuda",
            independent_times=config.times == "iid",
            reverse_complement=recipe.data.reverse_complement,
            complements=components.complements,
        )
        self.validation_rows = components.validation.spread(config.validation_rows)
        vocab_size = denoiser.config.vocab_size
        baseline = Baseline.of(rows, recipe.data.policy, vocab_size, objective, recipe.optimizer)
        self.logger = RunLogger(out, callbacks, Advisor(baseline), enabled=distributed.is_main)
        self.throughput = Throughput(
            denoiser.config, recipe.data.length, objective, schedule, accelerator.device, world_size
        )
        self.timer = Timer()
        self.step = 0
        self.bound: Bound | None = None
        self.bound_step = 0
        self.planner_metrics: PlannerMetrics | None = None

    def resume(self, point: ResumePoint) -> None:
        state = point.state
        check_same_data(self.out, state, self.components.train, self.train_step.optimizer_name)
        load_state(self.distributed, point.checkpoint, self.train_step, self.config.seed, state.step)
        self.step = state.step
        self.logger.resume(self.step, point.notices)
        self.timer = Timer(state.seconds, state.lap)

    def run(self) -> TrainingResult:
        """Train to the last step, or until a signal asks to stop."""
        config = self.config
        self.callbacks.on_begin(self.step, config.steps)
        if self.step == 0:
            rows, tokenizer = self.components.train, self.components.tokenizer
            advice = advice_on_data(rows, self.recipe.data.policy, tokenizer, config.batch_size, config.steps)
            for sentence in [*self.train_step.notices, *advice]:
                self.logger.log({"step": 0, "advice": sentence})

        stop_signal = 0
        with stop_requests() as received_signal, closing(self.feed.steps(self.step, config.steps)) as batches:
            for micro_batches in batches:
                step_or_explain(self.train_step, micro_batches, self.step, self.distributed)
                self.step += 1
                self.callbacks.on_step()
                stop_signal = self.distributed.highest(received_signal())
                last = self.step == config.steps
                if last or self.step % config.log_every == 0:
                    self._log()
                if last or self.step % config.validate_every == 0:
                    self._validate()
                if config.sample_every and (last or self.step % config.sample_every == 0):
                    self._sample()
                # Saved last, so that a resumed run does not repeat any of the above.
                if last or stop_signal or self.step % config.save_every == 0 or self._is_best():
                    self._save()
                if stop_signal:
                    break

        if self.step < config.steps:
            raise Interrupted(self.out, self.step, stop_signal)
        bound = self._measure() if self.bound is None else self.bound
        return TrainingResult(self.out, self.step, self.timer.seconds, bound, self.planner_metrics)

    def _log(self) -> None:
        self._check_finite()
        sums = self.distributed.sum(self.train_step.metrics.sums)
        tokens_per_second = int(sums["tokens"]) / max(self.timer.lap, 1e-9)
        record = {
            "step": self.step,
            **self.train_step.metrics.summary(sums),
            "denominator": self.recipe.objective.denominator,
            "learning_rate": self.train_step.config.rate(self.step - 1, self.config.steps),
            "tokens_per_second": tokens_per_second,
            **self.throughput.read(tokens_per_second),
            "seconds": self.timer.seconds,
        }
        self.logger.log(record)
        if self.step % self.config.log_every == 0:
            self.train_step.metrics.reset()
            self.timer.start_lap()

    def _validate(self) -> None:
        self._check_finite()
        self.bound, self.bound_step = self._measure(), self.step
        record = {"step": self.step, "validation": self.bound.as_dict()}
        if self.planner_metrics is not None:
            record["foresight"] = self.planner_metrics.as_dict()
        self.logger.log(record)

    def _measure(self) -> Bound:
        with self.timer.paused():
            self.planner_metrics = measure_planner(self.distributed, self.train_step, self.validation_rows)
            return measure_bound(self.distributed, self.train_step, self.validation_rows)

    def _sample(self) -> None:
        self._check_finite()
        parts, config = self.components, self.config
        with self.timer.paused():
            texts = generate_samples(
                self.train_step, parts.tokenizer, parts.checkpoint_config, config.samples, config.seed
            )
        self.logger.log({"step": self.step, "samples": texts})

    @property
    def _bound_now(self) -> Bound | None:
        """The validation bound if it was measured at the current step, else None."""
        return self.bound if self.bound_step == self.step else None

    def _is_best(self) -> bool:
        bound = self._bound_now
        if bound is None or not self.config.keep_best:
            return False
        return self.distributed.on_main(lambda: improves(self.out, bound.bits_per_token, bound.denominator))

    def _save(self) -> None:
        self._check_finite()
        bound = self._bound_now
        state = TrainerState(
            step=self.step,
            samples=self.step * self.config.batch_size,
            seconds=self.timer.seconds,
            lap=self.timer.lap,
            data=fingerprint(self.components.train),
            recipe=self.recipe.model_dump(mode="json"),
            bits_per_token=None if bound is None else bound.bits_per_token,
            optimizer=self.train_step.optimizer_name,
            denominator=self.recipe.objective.denominator,
        )
        config = self.components.checkpoint_config.model_copy(update={"schedule": self.train_step.schedule})
        keep, keep_best = self.config.keep, self.config.keep_best
        with self.timer.paused():
            path = save_state(self.distributed, self.out, self.train_step, self.components.tokenizer, config, state)
            self.distributed.on_main(lambda: publish(self.out, path, keep, keep_best))

    def _check_finite(self) -> None:
        """Stop the run before a non-finite network is logged, validated or saved. Waits for the device."""
        bad = self.train_step.metrics.first_non_finite()
        if bad is None:
            return
        located = [self.feed.locate(bad.step - 1, place) for place in bad.places]
        samples = sorted(one for some in self.distributed.gather(located) for one in some)
        if samples:
            shown = ", ".join(f"{sample} (row {row})" for sample, row in samples[:SHOWN_SAMPLES])
            suspects = f"samples {shown}{' and more' if len(samples) > SHOWN_SAMPLES else ''}"
        else:
            first = (bad.step - 1) * self.config.batch_size
            suspects = f"samples {first} to {first + self.config.batch_size - 1}"
        finite = all(bool(local(one).isfinite().all()) for one in self.train_step.parameters.values())
        weights = "still finite" if all(self.distributed.gather(finite)) else "not finite either"
        latest = find_latest(self.out)
        quantity = "gradient" if math.isfinite(bad.loss) else "loss"
        good = f"the last good checkpoint is {latest}" if latest else "there is no checkpoint"
        raise UnmaskError(
            f"The {quantity} of step {bad.step} is not finite ({suspects}; loss {bad.loss:.4g}, gradient norm "
            f"{bad.grad_norm:.4g}, before {bad.previous_grad_norm:.4g}; the weights are {weights}), and {good}; train "
            "again with a lower optimizer.learning_rate or with training.precision=float32."
        )


@dataclass(frozen=True)
class Components:
    """What a run is made of. `complements` [V] maps each token to its complement if reverse complements are drawn."""

    denoiser: Any
    tokenizer: Any
    train: Rows
    validation: Rows
    checkpoint_config: CheckpointConfig
    complements: Integers | None = None


def build_components(
    recipe: Recipe, distributed: Distributed, progress: Callable[[str, int, int], None] | None = None
) -> Components:
    """Read the data, once per machine, and build the network. Seeds torch's generator, which dropout uses too."""
    data = recipe.data
    corpus = distributed.on_local_main(
        lambda: prepare(data.source, data.tokenizer, data.validation, data.seed, progress)
    )
    tokenizer: Any = corpus.tokenizer
    train_rows, validation_rows = corpus.rows(data.policy, data.length)
    train_rows.check_trainable()
    complements = None
    if data.reverse_complement:
        complements = np.array(complement_map(tokenizer))
        if data.policy.ends_with_eos and tokenizer.eos_token_id is not None:
            raise UnmaskError(
                f"data.reverse_complement must be 0 with a tokenizer that ends texts with EOS, got "
                f"{data.reverse_complement:g}; set data.tokenizer=dna."
            )
    torch.manual_seed(recipe.training.seed)
    options: dict[str, Any] = {"mask_logit": True} if recipe.objective.needs_mask_logit else {}
    if hasattr(recipe.model, "token_options"):
        options |= recipe.model.token_options(tokenizer)
    try:
        denoiser = recipe.model.build(len(tokenizer), tokenizer.mask_token_id, data.length, **options)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UnmaskError(
            "The network does not fit into the memory of this machine; lower model.hidden_size or model.layers, or "
            "choose a smaller model.size."
        ) from None
    checkpoint_config = CheckpointConfig(
        schedule=recipe.schedule,
        objective=recipe.objective.evaluation_objective,
        policy=data.policy,
        length=data.length,
        protocol={"data": data.model_dump(mode="json")},
    )
    return Components(denoiser, tokenizer, train_rows, validation_rows, checkpoint_config, complements)


def check_fit(model: Any, objective: Any, policy: Any) -> None:
    """Raise `UnmaskError` if the model cannot be trained with the objective or on rows of the length policy."""
    own, separator = (getattr(part, "separator", None) for part in (model, policy))
    if own is not None and own != separator:
        raise UnmaskError(
            f"model.separator must be that of the length policy 'prompted', got {own!r}, and data.policy is "
            f"'{policy.name}'{'' if separator is None else f' with {separator!r}'}; set both to the same."
        )
    if model.causal != objective.causal:
        attends, needs = ("both ways", "left to right") if objective.causal else ("left to right", "both ways")
        fitting = f"model.name={'causal' if objective.causal else 'dit'}"
        raise UnmaskError(
            f"The model '{model.name}' reads {attends}, and the objective '{objective.name}' needs {needs}; "
            f"choose another objective, or {'another model' if model.name == 'checkpoint' else fitting}."
        )
    planner = getattr(model, "planner", None)
    if objective.trains_planner and planner is None:
        raise UnmaskError(
            f"The objective '{objective.name}' trains the planner of a checkpoint, and the model '{model.name}' has "
            "none; start with 'unmask train planner --from CKPT', or choose another objective."
        )
    if planner is not None and not objective.trains_planner:
        raise UnmaskError(
            f"model.planner is not trained by the objective '{objective.name}'; set objective=planner, or leave out "
            "model.planner."
        )
    if planner is not None and model.lora is not None:
        raise UnmaskError("model.lora trains the network and model.planner freezes it; set only one of them.")


@contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request to stop: the yielded function returns the first signal, or 0.

    A later Ctrl-C stops at once. A SIGHUP that is already ignored, as under nohup, stays ignored. Only the main thread
    can handle signals.
    """
    first, first_at = 0, 0.0
    terminals = [output for output in (1, 2) if os.isatty(output)]

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first, first_at
        for output in terminals:
            if not os.isatty(output):  # the terminal is gone: printing must not fail before the run is saved
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        now = time.monotonic()
        if not first:
            first, first_at = number, now
        elif number == signal.SIGINT and now - first_at > SAME_SIGNAL_SECONDS:
            raise KeyboardInterrupt

    signals = [signal.SIGINT, signal.SIGTERM]
    hang_up = getattr(signal, "SIGHUP", None)  # Windows has none
    if hang_up and signal.getsignal(hang_up) != signal.SIG_IGN:
        signals.append(hang_up)
    main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handle) for number in (signals if main_thread else ())}
    try:
        yield lambda: first
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
