"""Training state, saved inside a checkpoint and put back, in safetensors and JSON alone.

state/model.safetensors        the weights themselves (the checkpoint's own are their average)
state/ema.safetensors          the average, where there is one
state/optimizer.safetensors    what the optimiser keeps for each weight
state/trainer.safetensors      torch's random states, the meter of a half-finished log line, what a schedule learns from
state/trainer.json             step, samples, seconds, the data's fingerprint and the recipe
state/checksums.json           size and CRC-32 of every file of the checkpoint

Tensors are whole and have the network's own names, however many processes hold them: any number can go on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask import checkpoint
from unmask.checkpoint import Card
from unmask.errors import UnmaskError
from unmask.files import atomic_folder
from unmask.models.lora import merged_state_dict
from unmask.training import randomness
from unmask.training.checksums import write_checksums
from unmask.training.layout import fill, whole
from unmask.training.runfolder import checkpoint_path
from unmask.training.step import Stepper
from unmask.training.world import World

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


def save(world: World, out: Path, stepper: Stepper, tokenizer: Any, card: Card, progressed: Progressed) -> Path:
    """Write the checkpoint of this moment. All processes bring what they hold, and the main one writes."""
    path = checkpoint_path(out, progressed.step)
    state = _state(world, stepper)
    with stepper.ema.applied():
        averaged = _at_main(world, stepper.denoiser.state_dict().items())

    def write() -> None:
        with atomic_folder(path) as folder:
            merged = merged_state_dict(stepper.denoiser, averaged)
            checkpoint.write(folder, stepper.denoiser, tokenizer, card, merged)
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


def restore(world: World, path: Path, stepper: Stepper, seed: int) -> None:
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
    randomness.put_back(world, stepper.accelerator.device, trainer, seed, read_progressed(path).step)


def _state(world: World, stepper: Stepper) -> dict[str, dict[str, Tensor]]:
    """The files of the state and what goes into them, whole, at the main process."""
    meter = {f"meter.{name}": total for name, total in world.sum(stepper.meter.sums).items()}
    learnt = {f"schedule.{name}": tensor.cpu() for name, tensor in stepper.keeper.tensors.items()}
    files = {
        "model": _at_main(world, stepper.layout.weights(stepper.parameters)),
        "optimizer": _at_main(world, stepper.layout.moments(stepper.optimizer, stepper.parameters)),
        "trainer": {**meter, **learnt, **randomness.states(world, stepper.accelerator.device)},
    }
    if stepper.ema.decay:
        files["ema"] = _at_main(world, stepper.ema.weights.items())
    return files


def _at_main(world: World, tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
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
