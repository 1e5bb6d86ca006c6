"""`unmask train`: a recipe, or just a text file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.common import Json, console, errors, print_json


def train(
    what: Annotated[str, typer.Argument(help="A recipe (name or .yaml), a text file or folder, or '-' for stdin.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.sub=value, e.g. training.steps=2000.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME without it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
    as_json: Json = False,
) -> None:
    """Train a masked diffusion model, or any baseline a recipe names.

    Examples:

        unmask train my.txt

        unmask train books/ data.length=256 model.size=tiny training.steps=20000

        unmask train demo --out runs/mine schedule=cosine

        unmask train demo --out runs/mine --resume training.steps=4000
    """
    from unmask.cli.report import bound_words
    from unmask.training import Interrupted, plan, train_run

    recipe, folder = plan(what, overrides or [], out)
    try:
        result = train_run(recipe, folder, resume=resume, console=errors)
    except Interrupted as stop:
        console.print(f"Stopped at step {stop.step}; go on with: unmask train {what} --out {folder} --resume", highlight=False)
        return
    if as_json:
        print_json(result.as_dict())
        return
    console.print(f"{bound_words(result.bound)}", highlight=False)
    console.print(f"Checkpoint: {folder}   try: unmask sample {folder}", highlight=False)
