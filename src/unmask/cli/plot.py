"""`unmask plot`: pictures of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from unmask.cli.common import Json, console, print_json

app = typer.Typer(no_args_is_help=True, help="Draw what was measured: unmask plot run DIR.")


@app.callback()
def plot() -> None:
    """Draw what was measured: unmask plot run DIR."""


@app.command("run")
def run(
    folders: Annotated[list[Path], typer.Argument(help="Folders that 'unmask train' wrote.", metavar="DIR")],
    out: Annotated[
        Path | None, typer.Option(help="A .png, .svg or .pdf; DIR/curves.png, or ./curves.png for several.")
    ] = None,
    x: Annotated[
        Literal["steps", "tokens", "seconds"], typer.Option("--x", help="What the horizontal axis counts.")
    ] = "steps",
    as_json: Json = False,
) -> None:
    """Draw the curves of a run, or of several over one another: loss, validation with its errors, gradients, speed.

    Examples:

        unmask plot run runs/mine

        unmask plot run runs/a runs/b runs/c --x tokens --out compared.svg

        unmask plot run runs/mine --json
    """
    from unmask.plots.curves import draw_runs
    from unmask.plots.runs import read_runs
    from unmask.plots.style import check_suffix

    picture = out or (folders[0] if len(folders) == 1 else Path()) / "curves.png"
    check_suffix(picture)
    runs = read_runs(folders)
    draw_runs(runs, picture, x)
    if as_json:
        print_json({"picture": str(picture), "runs": [one.summary() for one in runs]})
    else:
        console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
