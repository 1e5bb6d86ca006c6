"""torch's generators, which dropout alone draws from: one for each process, saved for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from unmask.training.world import World


def seed_process(world: World, seed: int, step: int = 0) -> None:
    """Give a process numbers of its own; the main one goes on where building the network left off."""
    if not world.main:
        digest = blake2b(f"{seed} {step} {world.process}".encode(), digest_size=7).digest()
        torch.manual_seed(int.from_bytes(digest, "big"))


def states(world: World, device: torch.device) -> dict[str, Tensor]:
    """The state of every process's generators, by name and process."""
    own = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        own[device.type] = _module(device).get_rng_state()
    gathered = world.gather(own)
    return {
        f"random.{kind}.{process}": state for process, kinds in enumerate(gathered) for kind, state in kinds.items()
    }


def put_back(world: World, device: torch.device, saved: Mapping[str, Tensor], seed: int, step: int) -> None:
    """Go on with the numbers of a checkpoint; a process that it does not know begins with numbers of its own."""
    cpu, own = f"random.cpu.{world.process}", f"random.{device.type}.{world.process}"
    if cpu not in saved:
        seed_process(world, seed, step)
        return
    torch.set_rng_state(saved[cpu])
    if device.type != "cpu" and own in saved:
        _module(device).set_rng_state(saved[own])


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
