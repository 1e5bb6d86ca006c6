"""The run folder: checkpoints with training state, checksums, retention, and where to resume.

OUT/recipe.yaml, OUT/log.jsonl
OUT/checkpoints/step-00000500/          a checkpoint with the EMA weights, as `unmask.load` opens it
OUT/checkpoints/step-00000500/state/    weights, EMA, optimizer and trainer state
OUT/latest, OUT/best                    links to checkpoints; OUT itself shows the files of the latest one
OUT/.lock, OUT/.lock.json               held while a run writes into OUT, and who holds it
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from filelock import FileLock, Timeout
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.checkpoint import CheckpointConfig, write_checkpoint
from unmask.config import Recipe, parse_recipe
from unmask.data.rows import POSITIONS, TEXT_TOKENS
from unmask.errors import UnmaskError
from unmask.io import atomic_file, atomic_folder, atomic_text, check_new_folder, find_damage, reading, write_checksums
from unmask.models.build import merged_state_dict
from unmask.registry import build
from unmask.training.callbacks import LOG, TRACKERS
from unmask.training.distributed import (
    Distributed,
    copy_full,
    full_tensor,
    gather_generator_states,
    restore_generator_states,
)

if TYPE_CHECKING:
    from unmask.data.rows import Rows
    from unmask.training.step import TrainStep

RECIPE = "recipe.yaml"
CHECKPOINTS = "checkpoints"
STATE = "state"
LATEST = "latest"
BEST = "best"
LOCK_FILES = LOCK, LOCK_HOLDER = ".lock", ".lock.json"
FINGERPRINT_ROWS = 64
MAY_CHANGE = ("expect", "training.steps", "training.accumulation", "training.shard", "training.precision",
              "training.log_every", "training.validate_every", "training.validation_rows", "training.save_every",
              "training.keep", "training.keep_best", "training.trackers", "training.sample_every", "training.samples",
              "training.deterministic")  # fmt: skip
"""Recipe keys that may change when a run is resumed."""

Resume = bool | Literal["auto"]
T = TypeVar("T")


@dataclass(frozen=True)
class TrainerState:
    """Progress of a run, as in state/trainer.json.

    `lap` is the time since the last log line, `data` a fingerprint of the training rows, `bits_per_token` the
    validation bound if it was measured at this step, `denominator` what it is divided by, and `optimizer` the one in
    use, which may replace the recipe's.
    """

    step: int
    samples: int
    seconds: float
    lap: float
    data: str
    recipe: dict[str, Any]
    bits_per_token: float | None = None
    optimizer: str | None = None
    denominator: str = POSITIONS

    @property
    def rows(self) -> int:
        """The number of training rows, with which the fingerprint begins."""
        return int(self.data.partition(" ")[0])

    def divides_by(self, denominator: str) -> bool:
        """Whether the bound is per `denominator`; text tokens and positions are the same without learned padding."""
        data = self.recipe.get("data")
        policy = data.get("policy", "packed") if isinstance(data, dict) else "packed"
        return self.denominator == denominator or not build("policy", policy).supervises_padding


_TRAINER_STATE = TypeAdapter(TrainerState)


def save_state(
    distributed: Distributed,
    out: Path,
    train_step: TrainStep,
    tokenizer: Any,
    config: CheckpointConfig,
    state: TrainerState,
) -> Path:
    """Write a checkpoint atomically. All processes contribute their tensors; the main process writes."""
    path = out / CHECKPOINTS / f"step-{state.step:08d}"
    files = _state_files(distributed, train_step)
    with train_step.ema.applied():
        averaged = _gather_to_main(distributed, train_step.denoiser.state_dict().items())

    def write() -> None:
        with atomic_folder(path) as folder:
            merged = merged_state_dict(train_step.denoiser, averaged)
            write_checkpoint(folder, train_step.denoiser, tokenizer, config, merged)
            (folder / STATE).mkdir()
            for name, tensors in files.items():
                contiguous = {key: tensor.detach().contiguous() for key, tensor in tensors.items()}
                save_file(contiguous, folder / STATE / f"{name}.safetensors")
            (folder / STATE / "trainer.json").write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
            write_checksums(folder)

    distributed.on_main(write)
    return path


def _state_files(distributed: Distributed, train_step: TrainStep) -> dict[str, dict[str, Tensor]]:
    """The full tensors of each state file, in the main process."""
    metrics = {f"meter.{name}": total for name, total in distributed.sum(train_step.metrics.sums).items()}
    learner = train_step.schedule_learner
    schedule = {f"schedule.{name}": tensor.cpu() for name, tensor in learner.tensors.items()} if learner else {}
    weights = train_step.layout.weights(train_step.parameters)
    optimizer = train_step.layout.optimizer_state(train_step.optimizer, train_step.parameters)
    generators = gather_generator_states(distributed, train_step.accelerator.device)
    files = {
        "model": _gather_to_main(distributed, weights),
        "optimizer": _gather_to_main(distributed, optimizer),
        "trainer": {**metrics, **schedule, **generators},
    }
    if train_step.ema.decay:
        files["ema"] = _gather_to_main(distributed, train_step.ema.weights.items())
    return files


def _gather_to_main(distributed: Distributed, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Full CPU copies in the main process; a device holds at most one full tensor at a time."""
    copies = {}
    for name, tensor in tensors:
        full = full_tensor(tensor.detach())
        if distributed.is_main:
            copies[name] = full.to("cpu", copy=True).contiguous()
    return copies


def load_state(distributed: Distributed, path: Path, train_step: TrainStep, seed: int, step: int) -> None:
    """Restore weights, EMA, optimizer, metrics, learned schedule and generator states of the checkpoint of a step."""
    parameters = train_step.parameters
    train_step.layout.load_weights(parameters, _read_tensors(path, "model", parameters))
    if train_step.ema.decay:
        average = _read_tensors(path, "ema", parameters)
        for name, tensor in train_step.ema.weights.items():
            copy_full(tensor, average[name])
    train_step.layout.load_optimizer_state(train_step.optimizer, parameters, _read_tensors(path, "optimizer"))
    trainer = _read_tensors(path, "trainer")
    if distributed.is_main:
        for name, tensor in train_step.metrics.sums.items():
            # earlier versions did not tell learned padding from text
            tensor.copy_(trainer.get(f"meter.{name}", trainer["meter.tokens"]))
    if train_step.schedule_learner is not None:
        for name, tensor in train_step.schedule_learner.tensors.items():
            tensor.copy_(trainer[f"schedule.{name}"])
        train_step.schedule = train_step.schedule_learner.restore()
    restore_generator_states(distributed, train_step.accelerator.device, trainer, seed, step)


def read_trainer_state(path: Path) -> TrainerState:
    """The trainer state of a checkpoint."""
    return _read_state(path, "trainer.json", lambda file: _TRAINER_STATE.validate_json(file.read_bytes(), strict=True))


def _read_tensors(path: Path, name: str, parameters: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The tensors of a state file, with the names and shapes of `parameters` if these are given."""
    tensors = _read_state(path, f"{name}.safetensors", load_file)
    if parameters is not None:
        there, here = ({key: list(one.shape) for key, one in some.items()} for some in (tensors, parameters))
        for key in here | there:
            if there.get(key) != here.get(key):
                raise UnmaskError(
                    f"The checkpoint '{path}' belongs to another model: '{key}' is {there.get(key, 'missing')} there "
                    f"and {here.get(key, 'missing')} here; resume with the recipe.yaml of its run, or train into a new "
                    "folder."
                )
    return tensors


def _read_state(path: Path, name: str, read: Callable[[Path], T]) -> T:
    damage = f"The checkpoint '{path}' is damaged: {name} cannot be read"
    with reading(damage, "resume from the last good one with --resume auto"):
        return read(path / STATE / name)


def all_checkpoints(out: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    folder = out / CHECKPOINTS
    found = [path for path in folder.iterdir() if re.fullmatch(r"step-\d{8,}", path.name)] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def find_latest(out: Path) -> Path | None:
    """The newest checkpoint of a run, or None."""
    return next(reversed(all_checkpoints(out)), None)


def improves(out: Path, bits_per_token: float, denominator: str) -> bool:
    """Whether a validation bound is lower than that of every saved checkpoint with this denominator."""
    ranked = _ranked(out, denominator)
    return not ranked or bits_per_token < ranked[0][0]


def publish(out: Path, checkpoint: Path, keep: int, keep_best: int) -> None:
    """Link OUT/latest, OUT/best and the files in OUT, and remove all but the newest and the best checkpoints."""
    names = [path.name for path in checkpoint.iterdir() if path.is_file()]
    try:
        _link(out / LATEST, checkpoint.relative_to(out))
        for name in names:
            _link(out / name, Path(LATEST, name))
    except OSError:  # a file system without links
        for name in names:
            with atomic_file(out / name) as copy:
                shutil.copyfile(checkpoint / name, copy)
    best = {by: [path for _, path in _ranked(out, by)[:keep_best]] for by in (TEXT_TOKENS, POSITIONS)}
    if now := best[TEXT_TOKENS] or best[POSITIONS]:
        with suppress(OSError):
            _link(out / BEST, now[0].relative_to(out))
    for path in (out / CHECKPOINTS).glob(".step-*"):  # half-written by a killed run
        shutil.rmtree(path, ignore_errors=True)
    for path in all_checkpoints(out)[:-keep]:
        if path not in best[TEXT_TOKENS] + best[POSITIONS]:
            removed = path.with_name(f".{path.name}.old")
            os.replace(path, removed)
            shutil.rmtree(removed, ignore_errors=True)


def _ranked(out: Path, denominator: str) -> list[tuple[float, Path]]:
    """The undamaged checkpoints with a known bound per `denominator`: the best first, of equal ones the older."""
    known = []
    for path in all_checkpoints(out):
        with suppress(UnmaskError):
            state = read_trainer_state(path)
            if state.bits_per_token is not None and state.divides_by(denominator):
                known.append((state.bits_per_token, path))
    return sorted(known)


def _link(path: Path, target: Path) -> None:
    """Replace `path` atomically by a relative symbolic link."""
    if path.is_symlink() and Path(os.readlink(path)) == target:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)


@contextmanager
def run_lock(out: Path) -> Iterator[None]:
    """Hold the lock of a run folder, or raise an `UnmaskError` that names its holder.

    The system releases the lock however the process ends. A run that writes nothing leaves no new folders behind. A
    file system without locks is used without one.
    """
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    if out.is_file():
        raise UnmaskError(f"'{out}' is a file, not a folder; choose another folder.")
    out.mkdir(parents=True, exist_ok=True)
    lock, holder = FileLock(out / LOCK), out / LOCK_HOLDER
    try:
        lock.acquire(timeout=0)
    except Timeout:
        try:
            held = json.loads(holder.read_text(encoding="utf-8"))
            who = f"process {held['pid']} on {held['host']} has been training into it since {held['since']}"
        except (OSError, ValueError, TypeError, KeyError):
            who = "another process is training into it"
        raise UnmaskError(f"'{out}' is in use: {who}; wait until it ends, or choose another folder.") from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
            raise
    try:
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        held = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        atomic_text(holder, json.dumps(held) + "\n")
        yield
    finally:
        holder.unlink(missing_ok=True)
        (out / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):
            for folder in new:
                folder.rmdir()


def clear_abandoned(out: Path) -> None:
    """Remove the files of a run without checkpoints, so that the same command can start again, but no other files."""
    found = [path for path in out.iterdir() if path.name not in LOCK_FILES] if out.is_dir() else []
    if {path.name for path in found} <= {RECIPE, LOG, TRACKERS, CHECKPOINTS} and find_latest(out) is None:
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to resume from, its trainer state, and notices for the user."""

    checkpoint: Path
    state: TrainerState
    notices: tuple[str, ...] = ()


def find_resume_point(out: Path, recipe: Recipe, resume: Resume) -> ResumePoint | None:
    """The checkpoint to resume from, or None for a new run.

    `auto` starts a new run if there is no checkpoint, and renames damaged checkpoints to damaged-step-N.
    """
    if not resume or find_latest(out) is None:
        if resume is True:
            raise UnmaskError(
                f"'{out}' has no checkpoint to resume from; leave out --resume, or start a new run with --resume auto."
            )
        clear_abandoned(out)
        check_new_folder(out, "choose another folder, or add --resume to continue the run in it", LOCK_FILES)
        return None
    good, damaged = None, []
    for checkpoint in reversed(all_checkpoints(out)):
        damage = find_damage(checkpoint)
        if damage is None:
            good = checkpoint
            break
        damaged.append((checkpoint, damage))
    if damaged and resume is True:
        first, damage = damaged[0]
        remedy = f"resume from the last good one, '{good}', with --resume auto" if good else "train into a new folder"
        raise UnmaskError(f"The checkpoint '{first}' is damaged ({damage}); {remedy}.")
    if good is None:
        raise UnmaskError(f"Every checkpoint in '{out}' is damaged; train into a new folder.")
    state = read_trainer_state(good)
    check_same_run(out, state.recipe, recipe, state.step)
    for path, _ in damaged:
        os.replace(path, path.with_name(f"damaged-{path.name}"))
    notices = tuple(
        f"The checkpoint {path.name} is damaged ({damage}) and was set aside; resuming from {good.name}."
        for path, damage in damaged
    )
    return ResumePoint(good, state, notices)


def check_same_run(out: Path, saved: dict[str, Any], recipe: Recipe, step: int) -> None:
    """Raise `UnmaskError` if a run cannot be resumed with this recipe after `step` steps."""
    before = parse_recipe(saved)
    for key, old, new in _differences(before.model_dump(mode="json"), recipe.model_dump(mode="json")):
        if not any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE):
            raise UnmaskError(
                f"'{out}' was trained with {key}={old} and the recipe now says {new}; "
                "set it back, or train into a new folder without --resume."
            )
    old_rate, new_rate = (one.optimizer.rate(step - 1, one.training.steps) for one in (before, recipe))
    if old_rate != new_rate:
        raise UnmaskError(
            f"The learning rate of '{out}' is already decaying towards step {before.training.steps}, so the run cannot "
            f"be extended to {recipe.training.steps}; start a new run from its weights with --from {out}."
        )


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted key, old value and new value of everything that differs, in the order of the recipe."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in new | old:
            inner = f"{key}.{name}" if key else name
            yield from _differences(old.get(name, "nothing"), new.get(name, "nothing"), inner)
    elif old != new:
        yield key, old, new


def fingerprint(rows: Rows) -> str:
    """The number of rows and a checksum of some of them, to recognise the data of a run."""
    some = rows.spread(FINGERPRINT_ROWS)
    return f"{len(rows)} rows, {zlib.crc32(some[:].input_ids.tobytes()):08x}"


def check_same_data(out: Path, saved: TrainerState, rows: Rows, optimizer: str) -> None:
    """Raise `UnmaskError` if the data or the optimizer in use differ from those of the checkpoint."""
    if saved.data != (now := fingerprint(rows)):
        raise UnmaskError(
            f"'{out}' was trained on other data ({saved.data}) than its source now gives ({now}); "
            "put the text back, or train into a new folder without --resume."
        )
    if saved.optimizer is not None and saved.optimizer != optimizer:
        raise UnmaskError(
            f"'{out}' was trained with {saved.optimizer}, which this launch does not support ({optimizer} would "
            f"replace it); resume it with the former launcher, or start a new run from its weights with --from {out}."
        )
