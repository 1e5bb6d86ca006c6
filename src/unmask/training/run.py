"""`unmask.train`: from the name of a recipe or text, or a checkpoint to fine-tune, to a recipe and a finished run.

`unmask train` resolves its recipe here too. What can be checked without torch is checked before torch is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from unmask.checkpoint import CheckpointConfig, find_checkpoint, network_type, read_checkpoint_config
from unmask.config import Recipe, check_recipe, is_recipe, override_value, recipe_for, source_override
from unmask.data.sources import is_pattern
from unmask.data.tokenizers import has_tokenizer
from unmask.errors import UnmaskError
from unmask.io import read_json
from unmask.registry import get

if TYPE_CHECKING:
    from unmask.training.callbacks import Callback
    from unmask.training.checkpointing import Resume
    from unmask.training.trainer import TrainingResult

MAY_BE_SET = ("model.lora", "model.planner", "model.dropout", "model.absolute_positions", "model.annealing_steps")
ADAPTED_LENGTH = 512
"""Tokens per row for a Hugging Face causal LM with at least as many positions."""
INHERITED_DATA = ("source", "validation", "seed")
ENCODER_RATE, CAUSAL_LM_RATE = 5e-5, 1e-4
"""Learning rates that replace that of the recipe ``finetune``, which suits small networks, for published ones."""


def train(
    recipe: str | Path | Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    text: str | Path | None = None,
    checkpoint: str | Path | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
    callbacks: Sequence[Callback] | None = None,
) -> TrainingResult:
    """Train a model as `unmask train` does, and return the run; `unmask.load(run.path)` opens it.

    Ctrl-C saves a checkpoint and raises `unmask.training.Interrupted`.

    Args:
        recipe: The name of a recipe, a YAML file, a `Recipe`, or text to train on without a recipe: a file, a folder,
            or ``hf:NAME`` for a dataset on the Hugging Face Hub.
        overrides: Keys of the recipe and their values, such as ``{"training.steps": 2000, "schedule": "cosine"}``.
        text: The text that a recipe is applied to.
        checkpoint: Fine-tune the weights of this checkpoint.
        out: The run folder, ``runs/NAME`` by default. It must be new unless the run is resumed.
        resume: Continue from the newest checkpoint in `out`; ``"auto"`` starts a new run if there is none, and skips
            damaged ones.
        callbacks: Receive the events of the run; by default its progress is shown on standard error.
    """
    settings = []
    for key, value in (overrides or {}).items():
        plain = value.tolist() if hasattr(value, "tolist") else str(value) if isinstance(value, Path) else value
        try:
            written = yaml.safe_dump(plain, default_flow_style=True).removesuffix("...\n").strip()
        except yaml.YAMLError as error:
            raise UnmaskError(f"{key} must be a number, a string, a list or a mapping, got {value!r}.") from error
        settings.append(f"{key}={written}")
    if isinstance(recipe, Recipe):
        if settings or text is not None or checkpoint is not None or out is None:
            raise UnmaskError("A Recipe is complete: give it with out= and without overrides, text and checkpoint.")
    else:
        given = [] if text is None else [str(text)]
        name = str(recipe)
        recipe = resolve_recipe(name, None if checkpoint is None else str(checkpoint), [*given, *settings])
        out = run_folder(name) if out is None else out
    from unmask.training.callbacks import make_progress
    from unmask.training.trainer import train as run_training

    if callbacks is None:
        from rich.console import Console

        callbacks = [make_progress(Console(stderr=True, highlight=False))]
    return run_training(recipe, out, resume=resume, callbacks=callbacks)


def resolve_recipe(what: str, checkpoint: str | None, overrides: Sequence[str]) -> Recipe:
    """Read a recipe, or the one for a text; a first override without '=' is the text that a recipe is applied to."""
    if overrides and "=" not in overrides[0]:
        text, *overrides = overrides
        if not is_recipe(what):
            raise UnmaskError(
                f"Cannot train on both '{what}' and '{text}'; put them into one folder, or use "
                f"data.source.paths='[{what}, {text}]' instead of '{text}', or quote a pattern such as 'texts/*.md'."
            )
        overrides = [source_override(text), *overrides]
    if checkpoint is not None:
        find_checkpoint(checkpoint)
    check_recipe(what, overrides, fine_tunes=checkpoint is not None)
    return recipe_from(what, checkpoint, overrides)


def run_folder(what: str) -> Path:
    """The default folder of a run, which is named after its recipe or text."""
    fixed = ["text", *(part for part in Path(what).parts if not is_pattern(part))]
    return Path("runs") / ("stdin" if what == "-" else Path(fixed[-1]).stem)


# ---- fine-tuning: what a recipe takes from a checkpoint --------------------------------------------------------------


def recipe_from(what: str, checkpoint: str | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe for `what`, the name of a recipe or a text, to train from a checkpoint or a run's newest one.

    Text uses the recipe ``finetune``, with a lower learning rate for all weights of a network of transformers. Network,
    tokenizer, length policy, length, objective and schedule are the checkpoint's; overrides come last. A recipe may
    itself start from a checkpoint, such as ``planner``. Then `checkpoint` may be None, and what the recipe leaves out,
    such as the data, is the checkpoint's.

    An autoregressive checkpoint with a masked objective, and a Hugging Face causal LM, are adapted: see `AdaptedSpec`.
    """
    from unmask.models.decoder import is_causal_lm
    from unmask.training.checkpointing import find_latest

    own = _recipe_with_checkpoint(what, overrides)
    if checkpoint is not None:
        folder = find_checkpoint(checkpoint)
        folder = find_latest(folder) or folder
        config = _causal_lm_config(folder) if is_causal_lm(folder) else read_checkpoint_config(folder)
        _check_overrides(overrides, checkpoint, folder)
    elif own is not None:
        checkpoint = own.model.path
        folder = find_checkpoint(checkpoint)
        config = read_checkpoint_config(folder)
    else:
        return recipe_for(what, overrides)
    if own is not None:
        named = any(_is_within(override, "data.source") for override in overrides)
        if not named and not _is_set(own, "data.source") and "source" not in config.protocol.get("data", {}):
            raise UnmaskError(
                f"'{checkpoint}' does not say what it was trained on; name the text after the recipe, as in "
                "'unmask train planner my.txt'."
            )
    inherited = _inherited(folder, config, own)
    trains_all = not any(_is_within(override, "model.lora") for override in overrides)
    if not is_recipe(what) and trains_all and not (network_type(folder) or "unmask-").startswith("unmask-"):
        rate = CAUSAL_LM_RATE if is_causal_lm(folder) else ENCODER_RATE
        inherited.append(f"optimizer.learning_rate={rate}")
    if is_causal_lm(folder) or (config.objective.causal and _masked_objective(overrides)):
        inherited.append(f"model={json.dumps({'name': 'adapted', 'path': str(folder)})}")
    return recipe_for(what, [*inherited, *overrides], for_text="finetune")


def _causal_lm_config(folder: Path) -> CheckpointConfig:
    """The settings by which a Hugging Face causal LM is adapted: packed rows, as it was trained on."""
    fields = read_json(folder / "config.json")
    positions = fields.get("max_position_embeddings", fields.get("n_positions"))
    length = min(ADAPTED_LENGTH, positions - 1) if isinstance(positions, int) else ADAPTED_LENGTH
    return CheckpointConfig(objective="subs", policy="packed", length=length)


def _masked_objective(overrides: Sequence[str]) -> bool:
    """Whether the overrides name an objective for a masked network."""
    chosen: Any = None
    for override in overrides:
        if override.partition("=")[0] in ("objective", "objective.name"):
            chosen = override_value(override)
    chosen = chosen.get("name") if isinstance(chosen, dict) else chosen
    return isinstance(chosen, str) and not get("objective", chosen).causal


def _recipe_with_checkpoint(what: str, overrides: Sequence[str]) -> Recipe | None:
    """The recipe if it starts from a checkpoint itself; None for others, and for those that need more overrides."""
    try:
        path = [override for override in overrides if _is_within(override, "model.path")]
        own = recipe_for(what, path, for_text="finetune")
    except UnmaskError:
        return None
    return own if own.model.name == "checkpoint" else None


def _inherited(folder: Path, config: CheckpointConfig, own: Recipe | None) -> list[str]:
    """The settings of a checkpoint as overrides (JSON is YAML too), without those that the recipe `own` sets."""
    values: dict[str, Any] = {
        "data.policy": config.policy.model_dump(mode="json"),
        "data.length": config.length,
        "objective": config.objective.model_dump(mode="json"),
        "schedule": config.schedule.model_dump(mode="json"),
    }
    if has_tokenizer(folder):
        values["data.tokenizer"] = {"name": "huggingface", "path": str(folder)}
    if own is None:
        values["model"] = {"name": "checkpoint", "path": str(folder)}
    else:
        data = config.protocol.get("data", {})
        values |= {f"data.{key}": data[key] for key in INHERITED_DATA if key in data}
        values |= {"objective.of": values["objective"]} if own.objective.trains_planner else {}
        values = {key: value for key, value in values.items() if not _is_set(own, key)} | {"model.path": str(folder)}
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _check_overrides(overrides: Sequence[str], checkpoint: str, folder: Path) -> None:
    """Raise `UnmaskError` if an override does not fit the network or tokenizer of the checkpoint."""
    own_tokenizer = has_tokenizer(folder)
    for override in overrides:
        part = "tokenizer" if own_tokenizer and _is_within(override, "data.tokenizer") else None
        if _is_within(override, "model") and not any(_is_within(override, free) for free in MAY_BE_SET):
            part = "network"
        if part:
            raise UnmaskError(
                f"'{override}' does not fit '{checkpoint}', which has its own {part}; leave it out, or train from "
                "scratch without --from."
            )
    if not own_tokenizer and not any(_is_within(override, "data.tokenizer") for override in overrides):
        raise UnmaskError(
            f"'{checkpoint}' has no tokenizer; name the one its network was trained with, "
            "such as data.tokenizer='{name: huggingface, path: gpt2}'."
        )


def _is_set(recipe: Recipe, key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in (getattr(recipe, section) if section else recipe).model_fields_set


def _is_within(override: str, section: str) -> bool:
    """Whether an override sets a section or a part of it."""
    key = override.partition("=")[0]
    return key == section or key.startswith(f"{section}.")
