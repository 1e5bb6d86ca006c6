"""Where a run begins: in a new folder, at its newest checkpoint, or at the newest one that is whole."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.checkpoint import CheckpointConfig, write_checkpoint
from unmask.config import Recipe, parse_recipe
from unmask.data.rows import Rows
from unmask.errors import UnmaskError
from unmask.io import atomic_folder, check_new_folder
from unmask.models.build import merged_state_dict
from unmask.training.distributed import Distributed, fill, put_back, states, whole
from unmask.training.step import TrainStep

CHECKSUMS = Path("state", "checksums.json")
CHUNK = 1 << 22


def write_checksums(folder: Path) -> None:
    """Note all files of a folder that is complete."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / CHECKSUMS)
    sums = {file.relative_to(folder).as_posix(): _sum_of(file) for file in files}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None for one that is as it was written."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        wrong = [name for name, expected in sums.items() if _sum_of(folder / name) != expected]
    except (OSError, ValueError, AttributeError) as error:
        missing = getattr(error, "filename", None)
        return f"{Path(missing).name} cannot be read" if missing else f"{CHECKSUMS.name} cannot be understood"
    return f"{wrong[0]} is not what was written" if wrong else None


def _sum_of(path: Path) -> list[int]:
    """[size, CRC-32] of a file."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return [size, crc]


CHECKPOINTS = "checkpoints"
LATEST = "latest"
BEST = "best"
_STEP = re.compile(r"step-(\d{8,})")


def checkpoint_path(out: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return out / CHECKPOINTS / f"step-{step:08d}"


def all_checkpoints(out: Path) -> list[Path]:
    """The checkpoints of a run, oldest first. A name is only taken by a whole one."""
    folder = out / CHECKPOINTS
    found = [(_STEP.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


def find_latest(out: Path) -> Path | None:
    """The newest checkpoint of a run, or None."""
    return next(reversed(all_checkpoints(out)), None)


def clear_abandoned(out: Path) -> None:
    """Remove a run that never came to its first checkpoint, so that the same command can begin it again."""
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if names and names <= {"recipe.yaml", "log.jsonl", "trackers", CHECKPOINTS} and find_latest(out) is None:
        shutil.rmtree(out)


def set_aside(checkpoint: Path) -> None:
    """Take a damaged checkpoint out of the run, but leave it for a person to look at."""
    os.replace(checkpoint, checkpoint.with_name(f"damaged-{checkpoint.name}"))


def publish(out: Path, checkpoint: Path) -> None:
    """Make OUT show this checkpoint. A reader of OUT/latest sees the old one or the new one."""
    names = [path.name for path in checkpoint.iterdir() if path.is_file()]
    try:
        _link(out / LATEST, checkpoint.relative_to(out))
        for name in names:
            _link(out / name, Path(LATEST, name))
    except OSError:
        for name in names:
            _copy(checkpoint / name, out / name)


def show_best(out: Path, checkpoint: Path) -> None:
    """Make OUT/best point at a checkpoint, where the file system has links."""
    with suppress(OSError):
        _link(out / BEST, checkpoint.relative_to(out))


def prune(out: Path, keep: int, spared: Collection[Path] = ()) -> None:
    """Remove all but the newest `keep` checkpoints and the spared ones, and what a killed run left half written."""
    for path in (out / CHECKPOINTS).glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in all_checkpoints(out)[:-keep]:
        if path not in spared:
            doomed = path.with_name(f".{path.name}.old")
            os.replace(path, doomed)
            shutil.rmtree(doomed, ignore_errors=True)


def _link(path: Path, target: Path) -> None:
    """A relative symbolic link that takes its name in one step."""
    if path.is_symlink() and Path(os.readlink(path)) == target:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    os.replace(temporary, path)


def _copy(source: Path, path: Path) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    shutil.copyfile(source, temporary)
    os.replace(temporary, path)


MAY_CHANGE = (
    "expect",
    "training.steps",
    "training.accumulation",
    "training.shard",
    "training.precision",
    "training.log_every",
    "training.validate_every",
    "training.validation_rows",
    "training.save_every",
    "training.keep",
    "training.keep_best",
    "training.trackers",
    "training.sample_every",
    "training.samples",
    "training.deterministic",
)
FINGERPRINT_ROWS = 64
_ABSENT = "nothing"


def check_same_run(out: Path, saved: dict[str, Any], recipe: Recipe, step: int) -> None:
    """Refuse to resume a run, `step` steps long, with another model, other data or another course of learning."""
    before = parse_recipe(saved)
    for key, old, new in _differences(before.model_dump(mode="json"), recipe.model_dump(mode="json")):
        if not any(key == free or key.startswith(f"{free}.") for free in MAY_CHANGE):
            raise UnmaskError(
                f"'{out}' was trained with {key}={old} and the recipe now says {new}; "
                "set it back, or train into a new folder without --resume."
            )
    _check_same_rate(out, before, recipe, step)


def _check_same_rate(out: Path, before: Recipe, now: Recipe, step: int) -> None:
    """Another number of steps is another run once the learning rate has begun to fall towards the last of them."""
    old, new = (recipe.optimizer.rate(step - 1, recipe.training.steps) for recipe in (before, now))
    if old != new:
        raise UnmaskError(
            f"The learning rate of '{out}' has been falling towards its last step, {before.training.steps}, so it "
            f"cannot go on to {now.training.steps}; begin a new run from its weights with --from {out}."
        )


def fingerprint(rows: Rows) -> str:
    """What tells a table of rows from another one: how many there are, and a checksum of some of them."""
    some = rows.spread(FINGERPRINT_ROWS)
    return f"{len(rows)} rows, {zlib.crc32(some[:].input_ids.tobytes()):08x}"


def check_same_data(out: Path, saved: str, rows: Rows) -> None:
    """Refuse to resume on data that have changed under the same name."""
    if saved != (now := fingerprint(rows)):
        raise UnmaskError(
            f"'{out}' was trained on other data ({saved}) than its source now gives ({now}); "
            "put the text back, or train into a new folder without --resume."
        )


def check_same_optimizer(out: Path, saved: str | None, now: str) -> None:
    """Refuse to go on where the run's optimiser cannot work and another one would take its place."""
    if saved is not None and saved != now:
        raise UnmaskError(
            f"'{out}' was trained with {saved}, which cannot work as this was launched ({now} would take its place); "
            f"resume it as it was launched before, or begin a new run from its weights with --from {out}."
        )


def _differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of everything that differs, in the order of the recipe."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*new, *(name for name in old if name not in new)]:
            inner = f"{key}.{name}" if key else name
            yield from _differences(old.get(name, _ABSENT), new.get(name, _ABSENT), inner)
    elif old != new:
        yield key, old, new


STATE = "state"


@dataclass(frozen=True)
class Progressed:
    """How far a run is: steps, sequences, seconds (`lap`: since the last log line), on which data, by which recipe.

    `bits_per_token` is the validation bound of these weights, where it was measured at this very step. `optimizer` is
    who moved them, which may be another one than the recipe's where that could not work.
    """

    step: int
    samples: int
    seconds: float
    lap: float
    data: str
    recipe: dict[str, Any]
    bits_per_token: float | None = None
    optimizer: str | None = None


def save(
    world: Distributed, out: Path, stepper: TrainStep, tokenizer: Any, card: CheckpointConfig, progressed: Progressed
) -> Path:
    """Write the checkpoint of this moment. All processes bring what they hold, and the main one writes."""
    path = checkpoint_path(out, progressed.step)
    state = _state(world, stepper)
    with stepper.ema.applied():
        averaged = _at_main(world, stepper.denoiser.state_dict().items())

    def write() -> None:
        with atomic_folder(path) as folder:
            merged = merged_state_dict(stepper.denoiser, averaged)
            write_checkpoint(folder, stepper.denoiser, tokenizer, card, merged)
            _write_state(folder / STATE, state, progressed)
            write_checksums(folder)

    world.main_does(write)
    return path


def read_progressed(path: Path) -> Progressed:
    """How far the run was when a checkpoint was written."""
    file = path / STATE / "trainer.json"
    try:
        return Progressed(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(path, file, error) from error


def restore(world: Distributed, path: Path, stepper: TrainStep, seed: int) -> None:
    """Put weights, average, optimiser, meter and random state back as they were."""
    shapes = {name: parameter.shape for name, parameter in stepper.parameters.items()}
    weights, moments = _read(path, "model"), _read(path, "optimizer")
    _check_names(path, weights, shapes)
    stepper.layout.load_weights(stepper.parameters, weights)
    if stepper.ema.decay:
        average = _read(path, "ema")
        _check_names(path, average, shapes)
        for name, tensor in stepper.ema.weights.items():
            fill(tensor, average[name])
    stepper.layout.load_moments(stepper.optimizer, stepper.parameters, moments)
    trainer = _read(path, "trainer")
    if world.main:
        for name, tensor in stepper.meter.sums.items():
            tensor.copy_(trainer[f"meter.{name}"])
    for name, tensor in stepper.keeper.tensors.items():
        tensor.copy_(trainer[f"schedule.{name}"])
    stepper.recall_schedule()
    put_back(world, stepper.accelerator.device, trainer, seed, read_progressed(path).step)


def _state(world: Distributed, stepper: TrainStep) -> dict[str, dict[str, Tensor]]:
    """The files of the state and what goes into them, whole, at the main process."""
    meter = {f"meter.{name}": total for name, total in world.sum(stepper.meter.sums).items()}
    learnt = {f"schedule.{name}": tensor.cpu() for name, tensor in stepper.keeper.tensors.items()}
    files = {
        "model": _at_main(world, stepper.layout.weights(stepper.parameters)),
        "optimizer": _at_main(world, stepper.layout.moments(stepper.optimizer, stepper.parameters)),
        "trainer": {**meter, **learnt, **states(world, stepper.accelerator.device)},
    }
    if stepper.ema.decay:
        files["ema"] = _at_main(world, stepper.ema.weights.items())
    return files


def _at_main(world: Distributed, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copies of tensors, whole, in the main process's host memory; no device holds more than one of them whole."""
    copies = {}
    for name, tensor in tensors:
        complete = whole(tensor.detach())
        if world.main:
            copies[name] = complete.to("cpu", copy=True).contiguous()
    return copies


def _write_state(folder: Path, state: Mapping[str, Mapping[str, Tensor]], progressed: Progressed) -> None:
    folder.mkdir()
    for name, tensors in state.items():
        save_file(
            {key: tensor.detach().contiguous() for key, tensor in tensors.items()}, folder / f"{name}.safetensors"
        )
    (folder / "trainer.json").write_text(json.dumps(asdict(progressed), indent=2) + "\n", encoding="utf-8")


def _read(path: Path, name: str) -> dict[str, Tensor]:
    file = path / STATE / f"{name}.safetensors"
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, file, error) from error


def _check_names(path: Path, saved: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
    """Refuse tensors of other names or shapes."""
    if odd := sorted(saved.keys() ^ shapes.keys()):
        raise _other_model(path, f"'{odd[0]}' is in one of the two only")
    for key, shape in shapes.items():
        if saved[key].shape != shape:
            raise _other_model(path, f"'{key}' is {list(saved[key].shape)} there and {list(shape)} here")


def _unreadable(path: Path, file: Path, error: Exception) -> UnmaskError:
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return UnmaskError(
        f"The checkpoint '{path}' is damaged: {file.name} cannot be read ({reason}); "
        "go on from the last good one with --resume auto."
    )


def _other_model(path: Path, difference: str) -> UnmaskError:
    return UnmaskError(
        f"The checkpoint '{path}' belongs to another model: {difference}; "
        "resume with the recipe.yaml of its run, or train into a new folder."
    )


class Retention:
    """Keeps the newest `keep` and the best `keep_best` checkpoints of a run."""

    def __init__(self, out: Path, keep: int, keep_best: int) -> None:
        self.out = out
        self.keep = keep
        self.keep_best = keep_best

    def improves(self, bits_per_token: float) -> bool:
        """Whether a bound that was just measured is lower than that of every checkpoint there is."""
        if not self.keep_best:
            return False
        ranked = self._ranked()
        return not ranked or bits_per_token < ranked[0][0]

    def saved(self, checkpoint: Path) -> None:
        """Show a new checkpoint as the latest and the best one as the best, and remove those that nothing keeps."""
        publish(self.out, checkpoint)
        best = [path for _, path in self._ranked()[: self.keep_best]]
        if best:
            show_best(self.out, best[0])
        prune(self.out, self.keep, spared=best)

    def _ranked(self) -> list[tuple[float, Path]]:
        """The checkpoints whose bound is known, best first; of equal ones the older."""
        known = [(read_progressed(path).bits_per_token, path) for path in all_checkpoints(self.out)]
        return sorted((bits, path) for bits, path in known if bits is not None)


Resume = bool | Literal["auto"]


@dataclass(frozen=True)
class Start:
    """The checkpoint to go on from (None: the beginning) and what it says; `notices` are for the person who waits."""

    checkpoint: Path | None = None
    progressed: Progressed | None = None
    notices: tuple[str, ...] = ()


def find_start(out: Path, recipe: Recipe, resume: Resume) -> Start:
    """Look into the folder of a run. `auto` begins it where there is nothing to resume, and steps over damage."""
    if resume and find_latest(out) is not None:
        return _resumed(out, recipe, step_over_damage=resume == "auto")
    if resume is True:
        raise UnmaskError(
            f"'{out}' has no checkpoint to resume from; leave out --resume, or begin where there is none with "
            "--resume auto."
        )
    clear_abandoned(out)
    other = "choose another folder"
    check_new_folder(out, other if out.is_file() else f"{other}, or add --resume to continue the run in it")
    return Start()


def _resumed(out: Path, recipe: Recipe, step_over_damage: bool) -> Start:
    problems: list[tuple[Path, str]] = []
    for checkpoint, problem in _newest_first(out):
        if problem is None:
            progressed = read_progressed(checkpoint)
            check_same_run(out, progressed.recipe, recipe, progressed.step)
            return Start(checkpoint, progressed, _set_aside(problems, checkpoint))
        if not step_over_damage:
            raise _damaged(out, checkpoint, problem)
        problems.append((checkpoint, problem))
    raise UnmaskError(f"Every checkpoint in '{out}' is damaged; train into a new folder.")


def _newest_first(out: Path) -> Iterator[tuple[Path, str | None]]:
    for checkpoint in reversed(all_checkpoints(out)):
        yield checkpoint, damage(checkpoint)


def _set_aside(problems: list[tuple[Path, str]], good: Path) -> tuple[str, ...]:
    for checkpoint, _ in problems:
        set_aside(checkpoint)
    return tuple(
        f"The checkpoint {checkpoint.name} is damaged ({problem}) and was set aside; going on from {good.name}."
        for checkpoint, problem in problems
    )


def _damaged(out: Path, checkpoint: Path, problem: str) -> UnmaskError:
    good = next((path for path, found in _newest_first(out) if found is None), None)
    remedy = (
        f"the last good one is '{good}': go on from it with --resume auto"
        if good
        else "there is no other one, so train into a new folder"
    )
    return UnmaskError(f"The checkpoint '{checkpoint}' is damaged ({problem}); {remedy}.")
