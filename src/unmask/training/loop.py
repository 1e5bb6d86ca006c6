"""`train`: from a recipe to a run folder that opens as a checkpoint, in steps that can be stopped and resumed."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from unmask.bounds import Bound
from unmask.config import Recipe, TrainingConfig
from unmask.files import atomic_text
from unmask.foresight import Foresight
from unmask.training import checkpoints
from unmask.training.advice import Advisor, Yardstick, advice_on_data
from unmask.training.checkpoints import Progressed
from unmask.training.clock import Clock
from unmask.training.data import Feed, parts_of
from unmask.training.device import deterministic_kernels, make_accelerator
from unmask.training.finite import check_finite
from unmask.training.interrupt import StopRequest, stop_requests
from unmask.training.journal import Journal
from unmask.training.memory import step_or_explain
from unmask.training.parts import Parts, build_parts, check_fit
from unmask.training.progress import Progress, Watchers
from unmask.training.randomness import seed_process
from unmask.training.retention import Retention
from unmask.training.same_run import check_same_data, check_same_optimizer, fingerprint
from unmask.training.samples import write_samples
from unmask.training.speed import Gauge
from unmask.training.start import Resume, Start, find_start
from unmask.training.step import Stepper
from unmask.training.trackers import Trackers, check_trackers
from unmask.training.validation import measure, measure_foresight
from unmask.training.world import World

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
    foresight: Foresight | None = None

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
    world = World(accelerator)
    progress = _watchers(recipe, out, progress) if world.main else Progress()
    with deterministic_kernels(recipe.training.deterministic), closing(progress):
        start = world.main_does(lambda: find_start(out, recipe, resume))
        parts = build_parts(recipe, world, progress.reading)
        trainer = Trainer(recipe, out, parts, progress, accelerator, world)
        trainer.begin(start)
        world.main_does(lambda: atomic_text(out / RECIPE, recipe.to_yaml()))
        return trainer.run()


class Trainer:
    """A run on its way: the network and its optimiser, the batches, the log, and how far it is."""

    def __init__(
        self, recipe: Recipe, out: Path, parts: Parts, progress: Progress, accelerator: Accelerator, world: World
    ) -> None:
        self.recipe = recipe
        self.out = out
        self.parts = parts
        self.progress = progress
        self.world = world
        self.stepper = Stepper(
            accelerator, parts.denoiser, recipe.objective, recipe.schedule, recipe.optimizer, recipe.training
        )
        seed_process(world, recipe.training.seed)
        self.feed = _feed(recipe, parts, world, self.stepper)
        self.validation = parts.validation.spread(recipe.training.validation_rows)
        self.retention = Retention(out, recipe.training.keep, recipe.training.keep_best)
        self.journal = Journal(out, progress, _advisor(recipe, parts), kept=world.main)
        self.gauge = _gauge(recipe, parts, accelerator)
        self.clock = Clock()
        self.step = 0
        self.bound: Bound | None = None
        self.foresight: Foresight | None = None
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
        checkpoints.restore(self.world, start.checkpoint, self.stepper, self.config.seed)
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
            texts = write_samples(denoiser, parts.tokenizer, parts.card, self.config.samples, self.config.seed)
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
        card = parts.card.model_copy(update={"schedule": self.stepper.schedule})
        with self.clock.paused():
            path = checkpoints.save(self.world, self.out, self.stepper, parts.tokenizer, card, progressed)
            self.world.main_does(lambda: self.retention.saved(path))

    def _check_finite(self) -> None:
        check_finite(self.stepper, self.feed, self.world, self.out)


def _watchers(recipe: Recipe, out: Path, progress: Progress | None) -> Progress:
    trackers = Trackers(recipe.training.trackers, out, recipe.model_dump(mode="json"))
    return Watchers(trackers, progress or Progress())


def _advisor(recipe: Recipe, parts: Parts) -> Advisor:
    vocab_size = parts.denoiser.config.vocab_size
    return Advisor(Yardstick.of(parts.train, recipe.data.policy, vocab_size, recipe.objective, recipe.optimizer))


def _gauge(recipe: Recipe, parts: Parts, accelerator: Accelerator) -> Gauge:
    network, length, devices = parts.denoiser.config, recipe.data.length, accelerator.num_processes
    return Gauge(network, length, recipe.objective, recipe.schedule, accelerator.device, devices)


def _feed(recipe: Recipe, parts: Parts, world: World, stepper: Stepper) -> Feed:
    training = recipe.training
    return Feed(
        rows=parts.train,
        batch_size=training.batch_size,
        parts=parts_of(training.batch_size, training.accumulation, *world.share),
        seed=training.seed,
        data_seed=recipe.data.seed,
        corrupt=None if stepper.keeper.learns else stepper.corrupt_ahead,
        pin=stepper.accelerator.device.type == "cuda",
    )
