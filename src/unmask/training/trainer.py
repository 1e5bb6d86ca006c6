"""`train`: from a recipe to a run folder that opens as a checkpoint, in steps that can be stopped and resumed."""

from __future__ import annotations

import math
import shlex
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from accelerate import Accelerator

from unmask.checkpoint import CheckpointConfig
from unmask.config import Recipe, TrainingConfig
from unmask.errors import UnmaskError
from unmask.io import atomic_text
from unmask.likelihood import Bound, eval_mode
from unmask.pipeline import MaskedDiffusionLM
from unmask.training.advice import Advisor, Baseline, advice_on_data
from unmask.training.callbacks import Progress, RunLogger, Trackers, Watchers, check_trackers
from unmask.training.checkpointing import (
    Progressed,
    Resume,
    Retention,
    Start,
    check_same_data,
    check_same_optimizer,
    find_latest,
    find_start,
    fingerprint,
    restore,
    save,
)
from unmask.training.components import Components, build_components, check_fit
from unmask.training.data_feed import DataFeed, parts_of
from unmask.training.distributed import Distributed, deterministic_kernels, local, make_accelerator, seed_process
from unmask.training.memory import step_or_explain
from unmask.training.metrics import Throughput
from unmask.training.step import TrainStep
from unmask.training.validation import PlannerMetrics, measure, measure_foresight


class Clock:
    """Starts when it is made; so many seconds of the run, and of the stretch at hand, are already behind it."""

    def __init__(self, seconds: float = 0.0, lap: float = 0.0) -> None:
        now = time.monotonic()
        self._start = now - seconds
        self._lap = now - lap

    @property
    def seconds(self) -> float:
        """Seconds of the whole run."""
        return time.monotonic() - self._start

    @property
    def lap(self) -> float:
        """Seconds since the last `begin_lap`, without pauses."""
        return time.monotonic() - self._lap

    def begin_lap(self) -> None:
        """A new stretch of training begins."""
        self._lap = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is no training."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._lap += time.monotonic() - start


SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 3.0
"""Seconds within which a second signal is the same one: launchers pass on what the terminal has sent already."""


class StopRequest:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.made = False
        self._when = 0.0

    def make(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: the first signal is a request, a later Ctrl-C stops at once."""
        now = time.monotonic()
        if self.made and number == signal.SIGINT and now - self._when > ECHO:
            raise KeyboardInterrupt
        if not self.made:
            self.made, self._when = True, now


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn signals into a request for as long as the block runs. Only the main thread can hear them."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.make) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


CALLS = 64
"""Network calls a text may take at most."""


def write_samples(denoiser: Any, tokenizer: Any, card: CheckpointConfig, count: int, seed: int) -> list[str]:
    """`count` texts by the weights as they are, the same for the same weights and seed.

    A masked model writes a whole row in `CALLS` steps, its causal twin the first `CALLS` tokens of one. Samplers draw
    from counters alone, so training's random numbers are not touched.
    """
    lm = MaskedDiffusionLM(denoiser, tokenizer, card)
    length, steps = (min(CALLS, lm.row_length), None) if lm.causal else (lm.row_length, CALLS)
    with eval_mode(denoiser):
        return lm.generate(count, length=length, steps=steps, seed=seed)


SHOWN = 8


def check_finite(stepper: TrainStep, feed: DataFeed, world: Distributed, out: Path) -> None:
    """Stop before a ruined network is logged, judged or saved. Waits for the device."""
    step = stepper.meter.first_bad_step()
    if step is None:
        return
    latest = find_latest(out)
    good = f"the last good checkpoint is '{latest}'" if latest else "there is no checkpoint yet"
    ruin = stepper.meter.ruin()
    what = "gradient" if math.isfinite(ruin.loss) else "loss"
    raise UnmaskError(
        f"The {what} of step {step} is not finite ({_suspects(stepper, feed, world, step)}; loss {ruin.loss:.4g}, "
        f"gradient norm {ruin.grad_norm:.4g} after {ruin.grad_norm_before:.4g} the step before; the weights are "
        f"{_weights_now(stepper, world)}), and {good}; train again with a lower optimizer.learning_rate or with "
        "training.precision=float32."
    )


def _suspects(stepper: TrainStep, feed: DataFeed, world: Distributed, step: int) -> str:
    """The samples of a bad step that are to blame, by their global index and their row in the training data.

    Where every loss is finite, none is known to be and all are named.
    """
    ruined = feed.samples(step - 1, stepper.meter.ruined_places())
    samples = sorted(sample for some in world.gather(ruined) for sample in some)
    if not samples:
        first = (step - 1) * feed.batch_size
        return f"samples {first} to {first + feed.batch_size - 1}"
    shown = ", ".join(f"{sample} (row {feed.row(sample)})" for sample in samples[:SHOWN])
    return f"samples {shown}{' and more' if len(samples) > SHOWN else ''}"


def _weights_now(stepper: TrainStep, world: Distributed) -> str:
    """Whether a bad step has spoilt the network, or only what was reported of it."""
    whole = all(bool(local(one).isfinite().all()) for one in stepper.parameters.values())
    return "finite still" if all(world.gather(whole)) else "ruined too"


RECIPE = "recipe.yaml"


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: `path` opens as its last checkpoint; `bound` is the validation bound of those weights.

    Of a planner the `bound` is its own loss over masked positions, and `foresight` tells what it is good for.
    """

    path: Path
    steps: int
    seconds: float
    bound: Bound
    foresight: PlannerMetrics | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {"path": str(self.path), "steps": self.steps, "seconds": self.seconds, "bound": self.bound.as_dict()}
        return values if self.foresight is None else {**values, "foresight": self.foresight.as_dict()}


class Interrupted(Exception):
    """Somebody stopped the run. It is saved as it is after `step` steps in the folder `path`, and can be resumed."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        self.step = step
        folder = shlex.quote(str(path))
        recipe = shlex.quote(str(path / RECIPE))
        self.resume_command = f"unmask train {recipe} --out {folder} --resume"
        super().__init__(f"Stopped and saved at step {step}; go on with: {self.resume_command}")


def train(
    recipe: Recipe, out: str | Path, *, resume: Resume = False, progress: Progress | None = None
) -> TrainingResult:
    """Train into the folder `out`, which must be new, or with `resume` go on from its newest checkpoint.

    `resume="auto"` begins where there is no checkpoint, and steps over damaged ones to the newest that is whole. Ctrl-C
    saves a checkpoint after the step at hand and raises `Interrupted`, which says how to resume. Started in several
    processes (`accelerate launch`, `torchrun`) they train together.
    """
    out = Path(out)
    check_fit(recipe.model, recipe.objective)
    check_trackers(recipe.training.trackers)
    accelerator = make_accelerator(recipe.training, recipe.optimizer.clip)
    world = Distributed(accelerator)
    progress = _watchers(recipe, out, progress) if world.main else Progress()
    with deterministic_kernels(recipe.training.deterministic), closing(progress):
        start = world.main_does(lambda: find_start(out, recipe, resume))
        parts = build_components(recipe, world, progress.reading)
        trainer = Trainer(recipe, out, parts, progress, accelerator, world)
        trainer.begin(start)
        world.main_does(lambda: atomic_text(out / RECIPE, recipe.to_yaml()))
        return trainer.run()


class Trainer:
    """A run on its way: the network and its optimiser, the batches, the log, and how far it is."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        parts: Components,
        progress: Progress,
        accelerator: Accelerator,
        world: Distributed,
    ) -> None:
        self.recipe = recipe
        self.out = out
        self.parts = parts
        self.progress = progress
        self.world = world
        self.stepper = TrainStep(
            accelerator, parts.denoiser, recipe.objective, recipe.schedule, recipe.optimizer, recipe.training
        )
        seed_process(world, recipe.training.seed)
        self.feed = _feed(recipe, parts, world, self.stepper)
        self.validation = parts.validation.spread(recipe.training.validation_rows)
        self.retention = Retention(out, recipe.training.keep, recipe.training.keep_best)
        self.journal = RunLogger(out, progress, _advisor(recipe, parts), kept=world.main)
        self.gauge = _gauge(recipe, parts, accelerator)
        self.clock = Clock()
        self.step = 0
        self.bound: Bound | None = None
        self.foresight: PlannerMetrics | None = None
        self.bound_step = 0

    @property
    def config(self) -> TrainingConfig:
        """How long, how much at once, how often."""
        return self.recipe.training

    def begin(self, start: Start) -> None:
        """Stand where the run stood when it wrote a checkpoint, or at its beginning."""
        if start.checkpoint is None or start.progressed is None:
            return
        progressed = start.progressed
        check_same_data(self.out, progressed.data, self.parts.train)
        check_same_optimizer(self.out, progressed.optimizer, self.stepper.optimizer_name)
        restore(self.world, start.checkpoint, self.stepper, self.config.seed)
        self.step = progressed.step
        self.journal.resume(self.step, start.notices)
        self.clock = Clock(progressed.seconds, progressed.lap)

    def run(self) -> TrainingResult:
        """Train to the last step, or until somebody asks to stop."""
        self.progress.begin(self.step, self.config.steps)
        if not self.step:
            self.journal.advise(0, [*self.stepper.notices, *self._advice_on_data()])
        with stop_requests() as stop:
            self._train(stop)
        if self.step < self.config.steps:
            raise Interrupted(self.out, self.step)
        return TrainingResult(self.out, self.step, self.clock.seconds, self.bound or self._measure(), self.foresight)

    def _advice_on_data(self) -> list[str]:
        words, policy = self.parts.tokenizer, self.recipe.data.policy
        batch_size, steps = self.config.batch_size, self.config.steps
        return advice_on_data(self.parts.train, policy, words.mask_token_id, words.eos_token_id, batch_size, steps)

    def _train(self, stop: StopRequest) -> None:
        with closing(self.feed.steps(self.step, self.config.steps)) as batches:
            for micro_batches in batches:
                step_or_explain(self.stepper, micro_batches, self.step, self.world)
                self.step += 1
                self.progress.stepped()
                stopping = self.world.any(stop.made)
                self._look_and_save(stopping)
                if stopping:
                    return

    def _look_and_save(self, stopping: bool) -> None:
        """What is due after a step. Saving comes last, so that a resumed run has all of it behind it."""
        last = self.step == self.config.steps
        if self._due(self.config.log_every) or last:
            self._log()
        if self._due(self.config.validate_every) or last:
            self._validate()
        if self.config.sample_every and (self._due(self.config.sample_every) or last):
            self._sample()
        if self._due(self.config.save_every) or last or stopping or self._at_its_best():
            self._save()

    def _due(self, every: int) -> bool:
        return self.step % every == 0

    def _at_its_best(self) -> bool:
        """Whether these very weights were just measured, and are better than any that were saved."""
        bits = self._bits_per_token()
        return bits is not None and self.world.main_does(lambda: self.retention.improves(bits))

    def _bits_per_token(self) -> float | None:
        """The validation bound, where it was measured after the last step."""
        return self.bound.bits_per_token if self.bound and self.bound_step == self.step else None

    def _log(self) -> None:
        self._check_finite()
        reading = self.stepper.meter.read(self.world.sum)
        speed = reading.tokens / max(self.clock.lap, 1e-9)
        record = {
            "step": self.step,
            **reading.as_dict(),
            "learning_rate": self.stepper.config.rate(self.step - 1, self.config.steps),
            "tokens_per_second": speed,
            **self.gauge.read(speed),
            "seconds": self.clock.seconds,
        }
        self.journal.trained(record)
        if self._due(self.config.log_every):
            self.stepper.meter.reset()
            self.clock.begin_lap()

    def _validate(self) -> None:
        self._check_finite()
        self.bound, self.bound_step = self._measure(), self.step
        seen = {} if self.foresight is None else {"foresight": self.foresight.as_dict()}
        self.journal.validated({"step": self.step, "validation": self.bound.as_dict(), **seen})

    def _sample(self) -> None:
        """Texts by the averaged weights, always from the same seeds. All processes write them, one keeps them."""
        self._check_finite()
        parts = self.parts
        with self.clock.paused(), self.stepper.averaged() as denoiser:
            texts = write_samples(
                denoiser, parts.tokenizer, parts.checkpoint_config, self.config.samples, self.config.seed
            )
        self.journal.sampled({"step": self.step, "samples": texts})

    def _measure(self) -> Bound:
        with self.clock.paused():
            self.foresight = measure_foresight(self.world, self.stepper, self.validation)
            return measure(self.world, self.stepper, self.validation)

    def _save(self) -> None:
        self._check_finite()
        progressed = Progressed(
            step=self.step,
            samples=self.step * self.config.batch_size,
            seconds=self.clock.seconds,
            lap=self.clock.lap,
            data=fingerprint(self.parts.train),
            recipe=self.recipe.model_dump(mode="json"),
            bits_per_token=self._bits_per_token(),
            optimizer=self.stepper.optimizer_name,
        )
        parts = self.parts
        card = parts.checkpoint_config.model_copy(update={"schedule": self.stepper.schedule})
        with self.clock.paused():
            path = save(self.world, self.out, self.stepper, parts.tokenizer, card, progressed)
            self.world.main_does(lambda: self.retention.saved(path))

    def _check_finite(self) -> None:
        check_finite(self.stepper, self.feed, self.world, self.out)


def _watchers(recipe: Recipe, out: Path, progress: Progress | None) -> Progress:
    trackers = Trackers(recipe.training.trackers, out, recipe.model_dump(mode="json"))
    return Watchers(trackers, progress or Progress())


def _advisor(recipe: Recipe, parts: Components) -> Advisor:
    vocab_size = parts.denoiser.config.vocab_size
    return Advisor(Baseline.of(parts.train, recipe.data.policy, vocab_size, recipe.objective, recipe.optimizer))


def _gauge(recipe: Recipe, parts: Components, accelerator: Accelerator) -> Throughput:
    network, length, devices = parts.denoiser.config, recipe.data.length, accelerator.num_processes
    return Throughput(network, length, recipe.objective, recipe.schedule, accelerator.device, devices)


def _feed(recipe: Recipe, parts: Components, world: Distributed, stepper: TrainStep) -> DataFeed:
    training = recipe.training
    return DataFeed(
        rows=parts.train,
        batch_size=training.batch_size,
        parts=parts_of(training.batch_size, training.accumulation, *world.share),
        seed=training.seed,
        data_seed=recipe.data.seed,
        corrupt=None if stepper.keeper.learns else stepper.corrupt_ahead,
        pin=stepper.accelerator.device.type == "cuda",
    )
