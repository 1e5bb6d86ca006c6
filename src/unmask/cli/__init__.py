"""The command line: one module per verb, which parses, calls the library and prints. Torch is imported by the verbs."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from unmask import __version__
from unmask.cli import bench, convert, demo, doctor, edit, fill, plot, sample, score, ship, train
from unmask.cli import eval as eval_verbs
from unmask.cli import list as list_verb
from unmask.errors import LoneError, UnmaskError

INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__base__  # click's class; some versions of Typer bundle their own click

app = typer.Typer(
    name="unmask",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("train", cls=train.TrainCommand)(train.train)
app.add_typer(eval_verbs.app, name="eval")
app.command("sample")(sample.sample)
app.command("fill")(fill.fill)
app.command("edit")(edit.edit)
app.command("score")(score.score)
app.command("convert")(convert.convert)
app.command("ship")(ship.ship)
app.add_typer(bench.app, name="bench")
app.add_typer(plot.app, name="plot")
app.command("list")(list_verb.list_members)
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Masked diffusion language models: train, score, generate, fill."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line. Bad input prints one sentence and exits with 2; Ctrl-C exits with 130."""
    try:
        code = app(prog_name="unmask", standalone_mode=False)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help is printed already
            sys.exit(2)
        message = error.format_message()
        message = message if message[-1] in ".?" else f"{message}."
        _exit_with(message if error.ctx is None else f"{message} See '{error.ctx.command_path} --help'.")
    except UnmaskError as error:
        _exit_with(str(error), every_process=isinstance(error, LoneError))
    except OSError as error:
        file = f" '{error.filename}'" if error.filename else ""
        _exit_with(f"Cannot access{file}: {error.strerror or error}; free some space or choose another path.")
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        sys.stderr.write("\nunmask: interrupted.\n")
    sys.exit(code)


def _exit_with(message: str, every_process: bool = False) -> None:
    """Print an error and exit with 2; of several processes only the first prints, unless `every_process` should."""
    if every_process or os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"unmask: {message}\n")
    sys.exit(2)
