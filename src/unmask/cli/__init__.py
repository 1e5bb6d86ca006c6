"""The command line: one thin module a verb. Heavy packages are imported by the verb that needs them."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from unmask import __version__
from unmask.cli import bench, convert, demo, doctor, edit, fill, plot, sample, score, ship, train
from unmask.cli import eval as evaluate
from unmask.cli import list as listing
from unmask.errors import LoneError, UnmaskError

NAME = "unmask"
"""What it is called, however it was started."""

UsageError: Any = typer.BadParameter.__base__
"""Words that make no command. Typer brings a copy of click along, or not, by its version."""

STOPPED = 130
"""The exit code of Ctrl-C, whether Typer notices it or we do."""

app = typer.Typer(
    name=NAME,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Masked diffusion language models: train, score, generate, fill.",
)
app.command("demo")(demo.demo)
app.command("train", cls=train.TrainCommand)(train.train)
app.add_typer(
    evaluate.app,
    name="eval",
    help="Perplexity on held-out text; eval generation: judge what it writes; eval puzzles: count what it solves; "
    "eval code: fill the blanks of functions.",
)
app.command("sample")(sample.sample)
app.command("fill")(fill.fill)
app.command("edit")(edit.edit)
app.command("score")(score.score)
app.command("convert")(convert.convert)
app.command("ship")(ship.ship)
app.add_typer(bench.app, name="bench")
app.add_typer(plot.app, name="plot")
app.command("list")(listing.listing)
app.command("doctor")(doctor.doctor)


@app.callback(invoke_without_command=True)
def about(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    """Masked diffusion language models: train, score, generate, fill."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line. Bad input is one sentence and exit code 2; Ctrl-C is 130."""
    try:
        code = app(prog_name=NAME, standalone_mode=False)
    except UsageError as error:
        _refuse(error)
    except UnmaskError as error:
        _stop(str(error), alone=isinstance(error, LoneError))
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        _stop(f"The file system refused{where}: {error.strerror or error}; free space or choose another place.")
    except KeyboardInterrupt:
        code = STOPPED
    if code == STOPPED:
        sys.stderr.write("\nunmask: stopped.\n")
    sys.exit(code)


def _refuse(error: Any) -> None:
    """Say what is wrong with the words of a command; for none at all there is its help, which has been shown."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.exit(2)
    reason = error.format_message()
    ended = reason if reason[-1] in ".?" else f"{reason}."
    _stop(ended if error.ctx is None else f"{ended} See '{error.ctx.command_path} --help'.")


def _stop(sentence: str, alone: bool = False) -> None:
    """Say it once, however many processes a launcher started, unless this one is `alone` in knowing it."""
    if alone or os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"unmask: {sentence}\n")
    sys.exit(2)
