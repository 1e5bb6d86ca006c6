"""Fine-tuning: a recipe in which the network, and what belongs to it, is that of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from unmask import shelf
from unmask.checkpoint import Card, read_card
from unmask.config import Recipe, recipe_for
from unmask.errors import UnmaskError
from unmask.training.runfolder import find_latest

MAY_BE_SET = ("model.lora", "model.dropout", "model.absolute_positions")


def recipe_from(what: str, checkpoint: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe a user names (or text, by the recipe ``finetune``), to go on from a checkpoint or a run's newest one.

    Network, tokenizer, length policy, length, objective and schedule are the checkpoint's; overrides come after.
    """
    folder = shelf.find(checkpoint)
    folder = find_latest(folder) or folder
    card = read_card(folder)
    own_tokenizer = (folder / "tokenizer_config.json").is_file()
    for override in overrides:
        _check_override(override, checkpoint, own_tokenizer)
    if not own_tokenizer and not any(_within(override.partition("=")[0], "data.tokenizer") for override in overrides):
        raise UnmaskError(
            f"'{checkpoint}' has no tokenizer; name the one its network was trained with, "
            "such as data.tokenizer='{name: huggingface, path: gpt2}'."
        )
    return recipe_for(what, [*_inherited(folder, card, own_tokenizer), *overrides], for_text="finetune")


def _inherited(folder: Path, card: Card, own_tokenizer: bool) -> list[str]:
    """What a checkpoint says about its runs, as overrides; JSON is YAML too."""
    values = {
        "model": {"name": "checkpoint", "path": str(folder)},
        "data.policy": card.policy.model_dump(mode="json"),
        "data.length": card.length,
        "objective": card.objective.model_dump(mode="json"),
        "schedule": card.schedule.model_dump(mode="json"),
    }
    if own_tokenizer:
        values["data.tokenizer"] = {"name": "huggingface", "path": str(folder)}
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _check_override(override: str, checkpoint: str, own_tokenizer: bool) -> None:
    """Refuse what cannot fit the network that is there."""
    key = override.partition("=")[0]
    brought = "tokenizer" if own_tokenizer and _within(key, "data.tokenizer") else None
    if _within(key, "model") and not any(_within(key, free) for free in MAY_BE_SET):
        brought = "network"
    if brought:
        raise UnmaskError(
            f"'{override}' does not fit '{checkpoint}', which brings its {brought} along; "
            "leave it out, or train anew without --from."
        )


def _within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")
