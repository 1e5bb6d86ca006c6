"""Fine-tuning: a recipe in which the network, and what belongs to it, is that of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.checkpoint import CheckpointConfig, find_checkpoint, read_checkpoint_config
from unmask.config import Recipe, recipe_for
from unmask.errors import UnmaskError
from unmask.training.checkpointing import find_latest

MAY_BE_SET = ("model.lora", "model.planner", "model.dropout", "model.absolute_positions")
DATA = ("source", "validation", "seed")
"""What the protocol of a checkpoint tells about its text."""


def recipe_from(what: str, checkpoint: str | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe a user names (or text, by the recipe ``finetune``), to go on from a checkpoint or a run's newest one.

    Network, tokenizer, length policy, length, objective and schedule are the checkpoint's; overrides come after. A
    recipe may be made for a checkpoint itself, which None then leaves to it: what such a recipe leaves out is the
    checkpoint's, its data included.
    """
    own = _made_for_a_checkpoint(what, overrides)
    if checkpoint is not None:
        folder = find_checkpoint(checkpoint)
        folder = find_latest(folder) or folder
        card = read_checkpoint_config(folder)
        _check_overrides(overrides, checkpoint, folder)
    elif own is not None:
        checkpoint = own.model.path
        folder = find_checkpoint(checkpoint)
        card = read_checkpoint_config(folder)
    else:
        return recipe_for(what, overrides)
    if own is not None:
        _check_text(own, card, overrides, checkpoint)
    return recipe_for(what, [*_inherited(folder, card, own), *overrides], for_text="finetune")


def _made_for_a_checkpoint(what: str, overrides: Sequence[str]) -> Recipe | None:
    """A recipe that names a checkpoint itself; None for others, and for those that are not whole without overrides."""
    try:
        own = recipe_for(what, [one for one in overrides if _within(_key(one), "model.path")], for_text="finetune")
    except UnmaskError:
        return None
    return own if own.model.name == "checkpoint" else None


def _inherited(folder: Path, card: CheckpointConfig, own: Recipe | None) -> list[str]:
    """What a checkpoint says about its runs, as overrides; JSON is YAML too. `own`: a recipe made for a checkpoint."""
    values: dict[str, Any] = {
        "data.policy": card.policy.model_dump(mode="json"),
        "data.length": card.length,
        "objective": card.objective.model_dump(mode="json"),
        "schedule": card.schedule.model_dump(mode="json"),
    }
    if _has_tokenizer(folder):
        values["data.tokenizer"] = {"name": "huggingface", "path": str(folder)}
    if own is None:
        values["model"] = {"name": "checkpoint", "path": str(folder)}
    else:
        values |= {f"data.{key}": value for key, value in card.protocol.get("data", {}).items() if key in DATA}
        values |= {"objective.of": values["objective"]} if own.objective.trains_planner else {}
        values = {key: value for key, value in values.items() if not _sets(own, key)} | {"model.path": str(folder)}
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _sets(recipe: Recipe, key: str) -> bool:
    """Whether a recipe says something about a key of it or of one of its parts."""
    section, _, name = key.rpartition(".")
    return name in (getattr(recipe, section) if section else recipe).model_fields_set


def _check_text(own: Recipe, card: CheckpointConfig, overrides: Sequence[str], checkpoint: str) -> None:
    """Refuse to guess what a recipe is to be used on."""
    named = any(_within(_key(override), "data.source") for override in overrides)
    if not named and not _sets(own, "data.source") and "source" not in card.protocol.get("data", {}):
        raise UnmaskError(
            f"'{checkpoint}' does not say what it was trained on; name the text behind the recipe, as in "
            "'unmask train planner my.txt'."
        )


def _check_overrides(overrides: Sequence[str], checkpoint: str, folder: Path) -> None:
    own_tokenizer = _has_tokenizer(folder)
    for override in overrides:
        _check_override(override, checkpoint, own_tokenizer)
    if not own_tokenizer and not any(_within(_key(override), "data.tokenizer") for override in overrides):
        raise UnmaskError(
            f"'{checkpoint}' has no tokenizer; name the one its network was trained with, "
            "such as data.tokenizer='{name: huggingface, path: gpt2}'."
        )


def _check_override(override: str, checkpoint: str, own_tokenizer: bool) -> None:
    """Refuse what cannot fit the network that is there."""
    key = _key(override)
    brought = "tokenizer" if own_tokenizer and _within(key, "data.tokenizer") else None
    if _within(key, "model") and not any(_within(key, free) for free in MAY_BE_SET):
        brought = "network"
    if brought:
        raise UnmaskError(
            f"'{override}' does not fit '{checkpoint}', which brings its {brought} along; "
            "leave it out, or train anew without --from."
        )


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").is_file()


def _key(override: str) -> str:
    return override.partition("=")[0]


def _within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")
