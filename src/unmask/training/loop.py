"""`train`: from a recipe to a run folder that opens as a checkpoint, in steps that can be stopped and resumed."""

from __future__ import annotations

import shlex
import warnings
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
from unmask.training.checkpoints import Progressed
from unmask.training.clock import Clock
from unmask.training.data import Feed, parts_of
from unmask.training.device import deterministic_kernels, make_accelerator
from unmask.training.interrupt import StopRequest, stop_requests
from unmask.training.log import Log
from unmask.training.parts import Parts, build_parts, check_fit
from unmask.training.progress import Progress
from unmask.training.runfolder import clear_abandoned, find_latest, latest_or_error
from unmask.training.same_run import check_same_data, check_same_run, fingerprint
from unmask.training.step import Stepper

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
    out, progress = Path(out), progress or Progress()
    check_fit(recipe.model, recipe.objective)
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
    check_same_run(out, progressed.recipe, recipe, progressed.step)
    return latest, progressed


class Trainer:
    """A run on its way: the network and its optimiser, the batches, the log, and how far it is."""

    def __init__(self, recipe: Recipe, out: Path, parts: Parts, progress: Progress) -> None:
        self.recipe = recipe
        self.out = out
        self.parts = parts
        self.progress = progress
        accelerator = make_accelerator(recipe.training)
        self.stepper = Stepper(
            accelerator, parts.denoiser, recipe.objective, recipe.schedule, recipe.optimizer, recipe.training.steps
        )
        self.feed = _feed(recipe, parts, pin=accelerator.device.type == "cuda")
        self.validation = parts.validation.spread(recipe.training.validation_rows)
        self.log = Log(out)
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
        self.clock = Clock(progressed.seconds, progressed.lap)

    def run(self) -> TrainingResult:
        """Train to the last step, or until somebody asks to stop."""
        self._tell()
        self.progress.begin(self.step, self.config.steps)
        with stop_requests() as stop:
            self._train(stop)
        if self.step < self.config.steps:
            raise Interrupted(self.out, self.step)
        return TrainingResult(self.out, self.step, self.clock.seconds, self.bound or self._measure())

    def _tell(self) -> None:
        """Say once what is done otherwise than the recipe asks."""
        if self.stepper.message is None:
            return
        warnings.warn(self.stepper.message, stacklevel=2)
        if self.step == 0:
            self.log.write({"step": 0, "message": self.stepper.message})

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
        if self._due(self.config.save_every) or last or stopping:
            self._save()

    def _due(self, every: int) -> bool:
        return self.step % every == 0

    def _log(self) -> None:
        self._check_finite()
        reading = self.stepper.meter.read()
        record = {
            "step": self.step,
            **reading.as_dict(),
            "learning_rate": self.stepper.config.rate(self.step - 1, self.config.steps),
            "tokens_per_second": reading.tokens / max(self.clock.lap, 1e-9),
            "seconds": self.clock.seconds,
        }
        self.log.write(record)
        self.progress.trained(record)
        if self._due(self.config.log_every):
            self.stepper.meter.reset()
            self.clock.begin_lap()

    def _validate(self) -> None:
        self._check_finite()
        self.bound = self._measure()
        record = {"step": self.step, "validation": self.bound.as_dict()}
        self.log.write(record)
        self.progress.validated(record)

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
