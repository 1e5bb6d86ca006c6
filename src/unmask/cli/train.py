"""`unmask train`: a recipe, or just a text file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.common import Json, console, errors, print_json


def train(
    what: Annotated[str, typer.Argument(help="A recipe (name or .yaml), a text file or folder, or '-' for stdin.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key.sub=value, e.g. training.steps=2000.")] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Go on from this checkpoint's weights: fine-tune it.", metavar="CKPT")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME without it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Without a terminal, print a line now and then.")] = False,
    as_json: Json = False,
) -> None:
    """Train a masked diffusion model, or any baseline a recipe names.

    Examples:

        unmask train my.txt

        unmask train books/ data.length=256 model.size=tiny training.steps=20000

        unmask train demo --out runs/mine schedule=cosine

        unmask train demo --out runs/mine schedule=cosine --resume

        unmask train my.txt optimizer=adamw optimizer.learning_rate=0.001

        unmask train my.txt --from runs/demo/mdlm training.steps=200

        unmask train my.txt --from runs/demo/mdlm model.lora.rank=8 optimizer.learning_rate=0.001
    """
    from unmask.cli.report import bound_words
    from unmask.config import recipe_for
    from unmask.training import Interrupted, progress_for
    from unmask.training import train as run
    from unmask.training.finetune import recipe_from

    chosen = overrides or []
    recipe = recipe_for(what, chosen) if from_ is None else recipe_from(what, from_, chosen)
    folder = out or Path("runs") / ("stdin" if what == "-" else Path(what).stem)
    try:
        result = run(recipe, folder, resume=resume, progress=progress_for(errors, verbose))
    except Interrupted as stop:
        report = {"path": str(stop.path), "step": stop.step, "resume": stop.resume_command}
        _say(report, f"Stopped and saved after step {stop.step}. Go on with:\n  {stop.resume_command}", as_json)
        return
    _say(result.as_dict(), f"{bound_words(result.bound)}\nCheckpoint: {folder}. Next: unmask sample {folder}", as_json)


def _say(report: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        console.print(words, highlight=False, soft_wrap=True)
