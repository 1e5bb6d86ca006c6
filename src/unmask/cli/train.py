"""`unmask train`: a recipe, or just a text file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from unmask.cli.common import Json, console, errors, print_json
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.config import Recipe
    from unmask.training import Interrupted, TrainingResult

NEWEST = "newest"
PLANNED = " --steps 64 --order planner"


class TrainCommand(TyperCommand):
    """`--resume` may stand alone, which Typer's options cannot."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        following = [*args, ""][1:]
        return super().parse_args(
            ctx,
            [
                f"--resume={NEWEST}" if arg == "--resume" and after != "auto" else arg
                for arg, after in zip(args, following, strict=True)
            ],
        )


What = Annotated[
    str,
    typer.Argument(
        help="A recipe (name or .yaml); a file or folder of .txt, .md, .jsonl, .json, .csv, .tsv, .parquet, .arrow or "
        "FASTA, also packed (.gz, .bz2, .xz, .zst); a saved dataset; hf:NAME for one on the Hugging Face hub; or '-' "
        "for stdin."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="key.sub=value, e.g. training.steps=2000; before them, the text for a recipe, as one would name it "
        "without one."
    ),
]
From = Annotated[
    str | None, typer.Option("--from", help="Go on from this checkpoint's weights: fine-tune it.", metavar="CKPT")
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="[auto]",
        help="Go on from the last checkpoint in the folder; auto also begins where there is none, and steps over "
        "damaged ones.",
    ),
]


def train(
    what: What,
    overrides: Overrides = None,
    from_: From = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME without it.")] = None,
    resume: Resume = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Without a terminal, print a line now and then.")] = False,
    as_json: Json = False,
) -> None:
    """Train a masked diffusion model, or any baseline a recipe names.

    Examples:

        unmask train my.txt

        unmask train books/ data.length=256 model.size=tiny training.steps=20000

        unmask train reviews.csv data.source.field=body

        unmask train demo --out runs/mine schedule=cosine

        unmask train demo --out runs/mine schedule=cosine --resume

        unmask train my.txt optimizer=adamw optimizer.learning_rate=0.001

        unmask train my.txt --from stories model.lora.rank=8 optimizer.learning_rate=0.001

        unmask train planner my.txt --from runs/mine

        torchrun --nproc-per-node 8 -m unmask train my.yaml --out runs/big --resume auto
    """
    from unmask.training import Interrupted, is_main, make_progress
    from unmask.training import train as run

    recipe = _recipe(what, from_, overrides or [])
    if is_main():
        _tell_left_out(recipe)
    folder = out or Path("runs") / ("stdin" if what == "-" else Path(what).stem)
    try:
        result = run(recipe, folder, resume=_resume(resume), callbacks=[make_progress(errors, verbose)])
    except Interrupted as stop:
        report, words = _stopped(stop)
    else:
        report, words = result.as_dict(), _words(result)
    if is_main():
        _say(report, words, as_json)


def _recipe(what: str, from_: str | None, overrides: list[str]) -> Recipe:
    """What is to be trained; a word before the overrides is the text for a recipe."""
    from unmask.config import is_recipe, source_override
    from unmask.training.fine_tuning import recipe_from

    if overrides and "=" not in overrides[0]:
        text, *rest = overrides
        overrides = [source_override(text), *rest]
        if not is_recipe(what):
            raise UnmaskError(
                f"'{text}' is a second text beside '{what}'; put both into one folder and name that, or write "
                f"data.source.paths='[{what}, {text}]' in its place."
            )
    return recipe_from(what, from_, overrides)


def _tell_left_out(recipe: Recipe) -> None:
    """Which files of a folder are not read."""
    if left_out := recipe.data.source.skipped_files():
        counts = ", ".join(f"{count} {suffix or 'without suffix'}" for suffix, count in left_out.items())
        errors.print(f"Files that are not read: {counts}.", highlight=False, soft_wrap=True, markup=False)


def _stopped(stop: Interrupted) -> tuple[dict[str, Any], str]:
    """What to tell machines and people of a run that was stopped."""
    report = {"path": str(stop.path), "step": stop.step, "resume": stop.resume_command}
    return report, f"Stopped and saved after step {stop.step}. Go on with:\n  {stop.resume_command}"


def _words(result: TrainingResult) -> str:
    """What a run has come to, and what one does with it first."""
    from unmask.cli.report import bound_words, planner_words

    bound, planner, folder = result.bound, result.planner_metrics, result.path
    words, how = (bound_words(bound), "") if planner is None else (planner_words(bound, planner), PLANNED)
    return f"{words}\nCheckpoint: {folder}. Next: unmask sample {folder}{how}"


def _resume(value: str | None) -> Any:
    """What `--resume`, `--resume auto` or its absence mean."""
    choices = {None: False, NEWEST: True, "auto": "auto"}
    if value not in choices:
        raise UnmaskError(f"--resume takes nothing or 'auto', not '{value}'.")
    return choices[value]


def _say(report: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        console.print(words, highlight=False, soft_wrap=True)
