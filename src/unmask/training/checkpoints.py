"""Training state, saved inside a checkpoint and put back, in safetensors and JSON alone.

state/model.safetensors        the weights themselves (the checkpoint's own are their average)
state/ema.safetensors          the average, where there is one
state/optimizer.safetensors    what AdamW keeps for each weight
state/trainer.safetensors      torch's random state, the meter of a half-finished log line, what a schedule learns from
state/trainer.json             step, samples, seconds, the data's fingerprint and the recipe
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from unmask.training.runfolder import checkpoint_path, prune, publish
from unmask.training.step import Stepper

STATE = "state"
ADAMW = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Progressed:
    """How far a run is: steps, sequences, seconds (`lap`: since the last log line), on which data, by which recipe."""

    step: int
    samples: int
    seconds: float
    lap: float
    data: str
    recipe: dict[str, Any]


def save(out: Path, stepper: Stepper, tokenizer: Any, card: Card, progressed: Progressed, keep: int) -> Path:
    """Write the checkpoint of this moment, show it as the run's latest, and remove old ones."""
    path = checkpoint_path(out, progressed.step)
    with atomic_folder(path) as folder:
        with stepper.ema.applied():
            checkpoint.write(folder, stepper.denoiser, tokenizer, card)
        _write_state(folder / STATE, stepper, progressed)
    publish(out, path)
    prune(out, keep)
    return path


def read_progressed(path: Path) -> Progressed:
    """How far the run was when a checkpoint was written."""
    file = path / STATE / "trainer.json"
    try:
        return Progressed(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise _damaged(path, file, error) from error


def restore(path: Path, stepper: Stepper) -> None:
    """Put weights, average, optimiser, meter and random state back as they were."""
    live = {name: parameter.detach() for name, parameter in stepper.parameters.items()}
    _fill(path, "model", live)
    if stepper.ema.decay:
        _fill(path, "ema", stepper.ema.weights)
    _restore_optimizer(path, stepper)
    trainer = _read(path, "trainer")
    for name, tensor in _sums(stepper).items():
        tensor.copy_(trainer[name])
    stepper.recall_schedule()
    _set_random_state(stepper.accelerator.device, trainer)


def _write_state(folder: Path, stepper: Stepper, progressed: Progressed) -> None:
    folder.mkdir()
    _write(folder / "model.safetensors", stepper.parameters)
    if stepper.ema.decay:
        _write(folder / "ema.safetensors", stepper.ema.weights)
    _write(folder / "optimizer.safetensors", _optimizer_tensors(stepper))
    _write(folder / "trainer.safetensors", {**_sums(stepper), **_random_state(stepper.accelerator.device)})
    (folder / "trainer.json").write_text(json.dumps(asdict(progressed), indent=2) + "\n", encoding="utf-8")


def _sums(stepper: Stepper) -> dict[str, Tensor]:
    """What is added up over steps, by name."""
    holders = {"meter": stepper.meter.tensors, "schedule": stepper.keeper.tensors}
    return {f"{holder}.{name}": tensor for holder, tensors in holders.items() for name, tensor in tensors.items()}


def _optimizer_tensors(stepper: Stepper) -> dict[str, Tensor]:
    state = stepper.optimizer.state
    return {
        f"{name}.{key}": state[parameter][key]
        for name, parameter in stepper.parameters.items()
        if parameter in state
        for key in ADAMW
    }


def _restore_optimizer(path: Path, stepper: Stepper) -> None:
    saved = _read(path, "optimizer")
    state = {}
    for number, (name, parameter) in enumerate(stepper.parameters.items()):
        if f"{name}.step" in saved:
            state[number] = {key: saved[f"{name}.{key}"] for key in ADAMW}
            _check_shape(path, f"{name}.exp_avg", state[number]["exp_avg"], parameter)
    groups = stepper.optimizer.state_dict()["param_groups"]
    stepper.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _random_state(device: torch.device) -> dict[str, Tensor]:
    """torch's generators, which dropout draws from."""
    states = {"random.cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[f"random.{device.type}"] = torch.get_device_module(device).get_rng_state()
    return states


def _set_random_state(device: torch.device, states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["random.cpu"])
    if f"random.{device.type}" in states and device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[f"random.{device.type}"])


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)


def _read(path: Path, name: str) -> dict[str, Tensor]:
    file = path / STATE / f"{name}.safetensors"
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, file, error) from error


@torch.no_grad()
def _fill(path: Path, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Copy a file's tensors into those that are there; both must have the same names and shapes."""
    saved = _read(path, name)
    if odd := sorted(saved.keys() ^ tensors.keys()):
        raise _other_model(path, f"'{odd[0]}' is in one of the two only")
    for key, tensor in tensors.items():
        _check_shape(path, key, saved[key], tensor)
    for key, tensor in tensors.items():
        tensor.copy_(saved[key])


def _check_shape(path: Path, key: str, saved: Tensor, wanted: Tensor) -> None:
    if saved.shape != wanted.shape:
        raise _other_model(path, f"'{key}' is {list(saved.shape)} there and {list(wanted.shape)} here")


def _damaged(path: Path, file: Path, error: Exception) -> UnmaskError:
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return UnmaskError(
        f"The checkpoint '{path}' is damaged: {file.name} cannot be read ({reason}); "
        "remove that folder to resume from the one before it, or train into a new folder."
    )


def _other_model(path: Path, difference: str) -> UnmaskError:
    return UnmaskError(
        f"The checkpoint '{path}' belongs to another model: {difference}; "
        "resume with the recipe.yaml of its run, or train into a new folder."
    )
