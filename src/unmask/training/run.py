"""`unmask.train`: from the name of a recipe or text to a finished run. `unmask train` prepares its run here too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from unmask.checkpoint import find_checkpoint
from unmask.config import Recipe, check_recipe, is_recipe, source_override
from unmask.data.sources import is_pattern
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.training.callbacks import Callback
    from unmask.training.checkpointing import Resume
    from unmask.training.trainer import TrainingResult


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
    """Read a recipe, or the one for a text; a first override without '=' is the text that a recipe is applied to.

    Torch is imported when everything looks right.
    """
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
    from unmask.training.fine_tuning import recipe_from

    return recipe_from(what, checkpoint, overrides)


def run_folder(what: str) -> Path:
    """The default folder of a run, named after its recipe or text."""
    fixed = ["text", *(part for part in Path(what).parts if not is_pattern(part))]
    return Path("runs") / ("stdin" if what == "-" else Path(fixed[-1]).stem)
