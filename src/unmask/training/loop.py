"""`train`: from a recipe to a run folder that opens as a checkpoint, in steps that can be stopped and resumed."""

from __future__ import annotations

import shlex
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.bounds import Bound
from unmask.config import Recipe, TrainingConfig
from unmask.errors import UnmaskError
from unmask.files import atomic_text, must_be_new
from unmask.likelihood import bound
from unmask.training import checkpoints
from unmask.training.advice import Advisor, Yardstick, advice_on_data
from unmask.training.checkpoints import Progressed
from unmask.training.clock import Clock
from unmask.training.data import Feed, parts_of
from unmask.training.device import deterministic_kernels, make_accelerator
from unmask.training.interrupt import StopRequest, stop_requests
from unmask.training.log import Log, read_log
from unmask.training.optimizer import learning_rate
from unmask.training.parts import Parts, build_parts, check_fit
from unmask.training.progress import Progress, Watchers
from unmask.training.runfolder import clear_abandoned, find_latest, latest_or_error
from unmask.training.same_run import check_same_data, check_same_run, fingerprint
from unmask.training.samples import write_samples
from unmask.training.speed import Gauge
from unmask.training.step import Stepper
from unmask.training.trackers import Trackers, check_trackers

RECIPE = "recipe.yaml"
VALIDATION_BATCH = 32
VALIDATION_OFFSETS = 8


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: `path` opens as its last checkpoint; `bound` is the validation bound of those weights."""

    path: Path
    steps: int
    seconds: float
    bound: Bound

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        bound = self.bound.as_dict()
        return {"path": str(self.path), "steps": self.steps, "seconds": self.seconds, "bound": bound}


class Interrupted(Exception):
    """Somebody stopped the run. It is saved as it is after `step` steps in the folder `path`, and can be resumed."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        self.step = step
        folder = shlex.quote(str(path))
        recipe = shlex.quote(str(path / RECIPE))
        self.resume_command = f"unmask train {recipe} --out {folder} --resume"
        super().__init__(f"Stopped and saved at step {step}; go on with: {self.resume_command}")


def train(recipe: Recipe, out: str | Path, *, resume: bool = False, progress: Progress | None = None) -> TrainingResult:
    """Train into the folder `out`, which must be new, or with `resume` go on from its newest checkpoint.

    Ctrl-C saves a checkpoint after the step at hand and raises `Interrupted`, which says how to resume.
    """
    out = Path(out)
    trackers = Trackers(recipe.training.trackers, out, recipe.model_dump(mode="json"))
    progress = Watchers(trackers, progress or Progress())
    check_fit(recipe.model, recipe.objective)
    check_trackers(recipe.training.trackers)
    if not resume:
        clear_abandoned(out)
        must_be_new(out, "choose another folder, or add --resume to continue the run in it")
    saved = _saved_run(out, recipe) if resume else None
    with deterministic_kernels(recipe.training.deterministic), closing(progress):
        trainer = Trainer(recipe, out, build_parts(recipe, progress.reading), progress)
        if saved is not None:
            trainer.restore(*saved)
        atomic_text(out / RECIPE, recipe.to_yaml())
        return trainer.run()


def _saved_run(out: Path, recipe: Recipe) -> tuple[Path, Progressed]:
    """The checkpoint to go on from, of a run that this recipe continues."""
    latest = latest_or_error(out)
    progressed = checkpoints.read_progressed(latest)
    check_same_run(out, progressed.recipe, recipe)
    return latest, progressed


class Trainer:
    """A run on its way: the network and its optimiser, the batches, the log, and how far it is."""

    def __init__(self, recipe: Recipe, out: Path, parts: Parts, progress: Progress) -> None:
        self.recipe = recipe
        self.out = out
        self.parts = parts
        self.progress = progress
        accelerator = make_accelerator(recipe.training)
        self.stepper = Stepper(accelerator, parts.denoiser, recipe.objective, recipe.schedule, recipe.optimizer)
        self.feed = _feed(recipe, parts, pin=accelerator.device.type == "cuda")
        self.validation = parts.validation.spread(recipe.training.validation_rows)
        self.log = Log(out)
        vocab_size = parts.denoiser.config.vocab_size
        self.advisor = Advisor(
            Yardstick.of(parts.train, recipe.data.policy, vocab_size, recipe.objective, recipe.optimizer)
        )
        self.gauge = Gauge(
            parts.denoiser.config,
            recipe.data.length,
            recipe.objective,
            recipe.schedule,
            accelerator.device,
            accelerator.num_processes,
        )
        self.clock = Clock()
        self.step = 0
        self.bound: Bound | None = None

    @property
    def config(self) -> TrainingConfig:
        """How long, how much at once, how often."""
        return self.recipe.training

    def restore(self, checkpoint: Path, progressed: Progressed) -> None:
        """Stand where the run stood when it wrote this checkpoint."""
        check_same_data(self.out, progressed.data, self.parts.train)
        checkpoints.restore(checkpoint, self.stepper)
        self.step = progressed.step
        self.log.truncate(self.step)
        for record in read_log(self.out):
            self.advisor.look(record)
        self.clock = Clock(progressed.seconds, progressed.lap)

    def run(self) -> TrainingResult:
        """Train to the last step, or until somebody asks to stop."""
        self.progress.begin(self.step, self.config.steps)
        if not self.step:
            self._advise(self._advice_on_data())
        with stop_requests() as stop:
            self._train(stop)
        if self.step < self.config.steps:
            raise Interrupted(self.out, self.step)
        return TrainingResult(self.out, self.step, self.clock.seconds, self.bound or self._measure())

    def _train(self, stop: StopRequest) -> None:
        with closing(self.feed.steps(self.step, self.config.steps)) as batches:
            for micro_batches in batches:
                self.stepper.step(micro_batches, self.step)
                self.step += 1
                self.progress.stepped()
                stopping = stop.made
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
        if self._due(self.config.save_every) or last or stopping:
            self._save()

    def _due(self, every: int) -> bool:
        return self.step % every == 0

    def _log(self) -> None:
        self._check_finite()
        reading = self.stepper.meter.read()
        speed = reading.tokens / max(self.clock.lap, 1e-9)
        record = {
            "step": self.step,
            **reading.as_dict(),
            "learning_rate": learning_rate(self.recipe.optimizer, self.step - 1),
            "tokens_per_second": speed,
            **self.gauge.read(speed),
            "seconds": self.clock.seconds,
        }
        self.log.write(record)
        self.progress.trained(record)
        self._advise(self.advisor.look(record))
        if self._due(self.config.log_every):
            self.stepper.meter.reset()
            self.clock.begin_lap()

    def _validate(self) -> None:
        self._check_finite()
        self.bound = self._measure()
        record = {"step": self.step, "validation": self.bound.as_dict()}
        self.log.write(record)
        self.progress.validated(record)
        self._advise(self.advisor.look(record))

    def _sample(self) -> None:
        """Texts by the averaged weights, always from the same seeds."""
        self._check_finite()
        parts, seed = self.parts, self.config.seed
        with self.clock.paused(), self.stepper.ema.applied():
            texts = write_samples(self.stepper.denoiser, parts.tokenizer, parts.card, self.config.samples, seed)
        record = {"step": self.step, "samples": texts}
        self.log.write(record)
        self.progress.sampled(record)

    def _advice_on_data(self) -> list[str]:
        mask, training = self.parts.tokenizer.mask_token_id, self.config
        return advice_on_data(self.parts.train, self.recipe.data.policy, mask, training.batch_size, training.steps)

    def _advise(self, sentences: list[str]) -> None:
        for sentence in sentences:
            record = {"step": self.step, "advice": sentence}
            self.log.write(record)
            self.progress.advised(record)

    def _measure(self) -> Bound:
        """The bound of the averaged weights by the estimator that counts, with the same draws every time."""
        name, estimator = next(iter(self.recipe.objective.estimators().items()))
        options: dict[str, Any] = {"name": name, "offsets": VALIDATION_OFFSETS, "batch_size": VALIDATION_BATCH}
        with self.clock.paused(), self.stepper.ema.applied():
            denoiser: Any = self.stepper.denoiser
            return bound(denoiser, estimator, self.recipe.schedule, self.validation, **options)

    def _save(self) -> None:
        self._check_finite()
        progressed = Progressed(
            step=self.step,
            samples=self.step * self.config.batch_size,
            seconds=self.clock.seconds,
            lap=self.clock.lap,
            data=fingerprint(self.parts.train),
            recipe=self.recipe.model_dump(mode="json"),
        )
        parts = self.parts
        with self.clock.paused():
            checkpoints.save(self.out, self.stepper, parts.tokenizer, parts.card, progressed, self.config.keep)

    def _check_finite(self) -> None:
        """Stop before a ruined network is logged, judged or saved. Waits for the device."""
        step = self.stepper.meter.first_bad_step()
        if step is None:
            return
        latest = find_latest(self.out)
        good = f"the last good checkpoint is '{latest}'" if latest else "there is no checkpoint yet"
        raise UnmaskError(
            f"The loss of step {step} is not finite, and {good}; "
            "train again with a lower optimizer.learning_rate or with training.precision=float32."
        )


def _feed(recipe: Recipe, parts: Parts, pin: bool) -> Feed:
    training = recipe.training
    return Feed(
        rows=parts.train,
        batch_size=training.batch_size,
        parts=parts_of(training.batch_size, training.accumulation),
        seed=training.seed,
        data_seed=recipe.data.seed,
        pin=pin,
    )
