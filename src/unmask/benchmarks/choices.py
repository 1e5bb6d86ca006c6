"""From what a user asks for to a setup: defaults by device, a recipe or a checkpoint, and where to compute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from unmask.benchmarks.setup import Setup

from unmask.checkpoint import read_checkpoint_config
from unmask.config import Recipe, read_recipe
from unmask.errors import UnmaskError
from unmask.models import CheckpointSpec
from unmask.models.build import read_config
from unmask.training.checkpointing import find_latest
from unmask.training.trainer import check_fit

DEFAULTS = {
    "cuda": ("model.size=small", "data.length=1024", "training.batch_size=64"),
    "cpu": ("model.size=nano", "data.length=128", "training.batch_size=16"),
}
VOCABULARY = {"cuda": 50_258, "cpu": 257}
COUNTABLE = ("byte", "dna")
"""Tokenizers whose vocabulary is known before they see a text."""


def chosen_recipe(what: Sequence[str], options: Sequence[str], device: torch.device) -> Recipe:
    """The recipe of a name or .yaml, of a checkpoint's folder, or of the device's defaults.

    `what` begins with one of the first two or not, and goes on with ``key=value``; `options` are more of these.
    """
    named = bool(what) and "=" not in what[0]
    overrides = [*what[named:], *options]
    if not named:
        return _sized(overrides, device)
    if Path(what[0]).is_dir():
        return read_recipe(None, [*_inherited(Path(what[0])), *overrides])
    return read_recipe(what[0], overrides)


def setup_for(recipe: Recipe, named: bool, vocabulary: int | None, device: torch.device) -> Setup:
    """What a recipe, `named` by the user or made of defaults, trains, on synthetic rows."""
    check_fit(recipe.model, recipe.objective)
    vocab_size, mask = _vocabulary(recipe, named, vocabulary, device)
    return Setup(
        spec=recipe.model,
        vocab_size=vocab_size,
        mask_token_id=mask,
        length=recipe.data.length,
        batch=recipe.training.batch_size,
        objective=recipe.objective,
        schedule=recipe.schedule,
        precision=precision_named(recipe.training.precision, device),
        device=device,
    )


def check_trains_on(device: torch.device) -> None:
    """Refuse a device that training would not take by itself."""
    own = "cuda" if torch.cuda.is_available() else "cpu"
    if device.type != own or device.index:
        raise UnmaskError(
            f"Training cannot be sent to '{device}', since it takes the first device it sees; "
            "leave --device out and set CUDA_VISIBLE_DEVICES."
        )


def precision_named(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bf16 on the GPUs that have it."""
    automatic = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if name == "bf16" or (name == "auto" and automatic) else torch.float32


def _sized(overrides: Sequence[str], device: torch.device) -> Recipe:
    """The recipe of the device's defaults; another model that is named without a size has the size of these too."""
    size, *others = DEFAULTS["cuda" if device.type == "cuda" else "cpu"]
    recipe = read_recipe(None, [size, *others, *overrides])
    unsized = hasattr(recipe.model, "size") and "size" not in recipe.model.model_fields_set
    return read_recipe(None, [*others, *overrides, size]) if unsized else recipe


def _inherited(folder: Path) -> list[str]:
    """What a checkpoint is, as overrides; JSON is YAML too."""
    folder = find_latest(folder) or folder
    card = read_checkpoint_config(folder)
    values = {
        "model": {"name": "checkpoint", "path": str(folder)},
        "data.length": card.length,
        "objective": card.objective.model_dump(mode="json"),
        "schedule": card.schedule.model_dump(mode="json"),
    }
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _vocabulary(recipe: Recipe, named: bool, wanted: int | None, device: torch.device) -> tuple[int, int]:
    """Tokens, the mask among them, and which it is."""
    if isinstance(recipe.model, CheckpointSpec):
        config = read_config(Path(recipe.model.path))
        if wanted not in (None, config.vocab_size):
            raise UnmaskError(f"This network has {config.vocab_size} tokens, not {wanted}; leave --vocab out.")
        return config.vocab_size, config.mask_token_id
    size = wanted or (_counted(recipe) if named else VOCABULARY["cuda" if device.type == "cuda" else "cpu"])
    return size, size - 1


def _counted(recipe: Recipe) -> int:
    tokenizer = recipe.data.tokenizer
    if hasattr(tokenizer, "vocab_size"):
        return tokenizer.vocab_size
    if tokenizer.name in COUNTABLE:
        return len(tokenizer.build(lambda: iter(())))
    raise UnmaskError(
        f"The tokenizer '{tokenizer.name}' of this recipe does not say how many tokens it has; add --vocab."
    )
