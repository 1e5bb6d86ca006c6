"""`unmask train`: train on a text file or by a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from unmask.cli.common import Json, error_console, format_bound, print_result
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.training import TrainingResult

RESUME: dict[str | None, Any] = {None: False, "newest": True, "auto": "auto"}


class TrainCommand(TyperCommand):
    """Allow `--resume` without a value, which Typer's options do not support."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        following = [*args, ""][1:]
        args = [
            "--resume=newest" if arg == "--resume" and after != "auto" else arg
            for arg, after in zip(args, following, strict=True)
        ]
        return super().parse_args(ctx, args)


What = Annotated[
    str,
    typer.Argument(
        help="A recipe (name or .yaml); a file or folder of .txt, .md, .jsonl, .json, .csv, .tsv, .parquet, .arrow or "
        "FASTA, optionally compressed (.gz, .bgz, .bz2, .xz, .zst); a pattern such as 'texts/**/*.md'; a saved "
        "dataset; hf:NAME for one on the Hugging Face Hub; or '-' for stdin."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="Recipe overrides such as training.steps=2000. After a recipe, the first may be the text to train on."
    ),
]
FROM_HELP = (
    "Fine-tune the weights of this checkpoint: a run, a shipped model, a folder of a Hugging Face language model such "
    "as BERT or GPT-2, or hf:NAME for one on the hub. A causal one becomes a masked model."
)
From = Annotated[str | None, typer.Option("--from", help=FROM_HELP, metavar="CKPT")]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="[auto]",
        help="Resume from the newest checkpoint in the run folder. With 'auto', start a new run if there is none, and "
        "skip damaged checkpoints.",
    ),
]


def train(
    what: What,
    overrides: Overrides = None,
    from_: From = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/NAME.")] = None,
    resume: Resume = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Without a terminal, print every log record as a line, not one line in 30 s."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a masked diffusion model, or any baseline that a recipe names.

    Examples:

        unmask train my.txt

        unmask train books/ data.length=256 model.size=tiny training.steps=20000

        unmask train 'notes/**/*.md' --out runs/notes

        unmask train reviews.csv data.source.field=body

        unmask train demo --out runs/mine schedule=cosine

        unmask train demo --out runs/mine schedule=cosine --resume

        unmask train my.txt optimizer=adamw optimizer.learning_rate=0.001

        unmask train my.txt --from stories model.lora.rank=8 optimizer.learning_rate=0.001

        unmask train my.txt --from hf:bert-base-uncased data.length=126

        unmask train planner my.txt --from runs/mine

        torchrun --nproc-per-node 8 -m unmask train my.yaml --out runs/big --resume auto
    """
    from unmask.training.run import resolve_recipe, run_folder

    recipe = resolve_recipe(what, from_, overrides or [])
    from unmask.training import Interrupted, is_main, make_progress
    from unmask.training import train as run_training

    if is_main() and (left_out := recipe.data.source.skipped_files()):
        counts = ", ".join(f"{count} {suffix or 'without suffix'}" for suffix, count in left_out.items())
        error_console.print(f"Skipped files: {counts}.", soft_wrap=True, markup=False)
    if resume not in RESUME:
        raise UnmaskError(f"--resume takes no value or 'auto', got '{resume}'.")
    try:
        callback = make_progress(error_console, verbose)
        result = run_training(recipe, out or run_folder(what), resume=RESUME[resume], callbacks=[callback])
        code, report, text = 0, result.as_dict(), _format_result(result)
    except Interrupted as stop:
        code, report = stop.exit_code, {"path": str(stop.path), "step": stop.step, "resume": stop.resume_command}
        text = f"Interrupted; the checkpoint of step {stop.step} is saved. Resume with:\n  {stop.resume_command}"
    if is_main():  # the other processes exit with 0: launchers end all processes when the first one fails
        print_result(report, text, as_json)
        raise SystemExit(code)


def _format_result(result: TrainingResult) -> str:
    if result.planner_metrics is None:
        line, options = format_bound(result.bound), ""
    else:  # the loss of a planner is not a bound of the text
        loss, error = result.bound.bits_per_token, result.bound.error("bits_per_token")
        line = f"Validation: {loss:.4f} ± {error:.4f} bits per masked token; {result.planner_metrics}"
        options = " --steps 64 --order planner"
    return f"{line}\nCheckpoint: {result.path}. Next: unmask sample {shlex.quote(str(result.path))}{options}"
