"""`unmask reproduce`: the tables and figures of the paper, each as one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import common

if TYPE_CHECKING:
    from unmask.evaluation.tables.base import ScaleName, Table

ALL, LIST = "all", "list"


def reproduce(
    what: Annotated[str, typer.Argument(help="An experiment ('unmask reproduce list' shows them), or 'all'.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="Settings of all runs, such as training.steps=1500.", metavar="[KEY=VALUE]..."),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="tiny checks in minutes on two cores that the command works, small takes minutes to hours on one GPU, "
            "and paper is the published size."
        ),
    ] = "small",
    on: Annotated[
        str | None,
        typer.Option(
            help="Another protocol for the data ('unmask list protocol'), or a text file.", metavar="PROTOCOL"
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Training seeds of each run.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for runs, measurements, tables and figures.")] = Path("reproduced"),
    device: common.Device = None,
    as_json: common.Json = False,
) -> None:
    """Train what is missing, evaluate it, and print the table beside the published figures.

    Everything is kept in the folder OUT/SCALE. The same command continues after an interruption, and experiments share
    their runs. Each table is written as table.json, table.md and figure.png; 'all' adds the page
    report.html.

    Examples:

        unmask reproduce list --scale small

        unmask reproduce table1 --scale tiny

        unmask reproduce table8 --scale small --on text8-74m --out reproduced

        unmask reproduce table1 training.steps=1000 --seeds 3

        unmask reproduce all --scale tiny
    """
    from unmask.data.protocols import get_protocol
    from unmask.errors import UnmaskError, did_you_mean
    from unmask.evaluation.tables import experiments, get_experiment
    from unmask.evaluation.tables.base import SCALES

    if scale not in SCALES:
        raise UnmaskError(f"There is no scale named '{scale}'.{did_you_mean(scale, SCALES)}")
    chosen: ScaleName = scale  # type: ignore[assignment]
    if what == LIST:
        _list(chosen, on, as_json)
        return
    if what == ALL:
        suited = (one for one in experiments().values() if chosen in one.scales)
        names = [one.name for one in suited if on is None or one.fits(get_protocol(on))]
    else:
        names = [get_experiment(what).name]
    _run(names, chosen, on, out / scale, device, as_json, settings or [], seeds, report=what == ALL)


def _run(
    names: list[str],
    scale: ScaleName,
    on: str | None,
    folder: Path,
    device: str | None,
    as_json: bool,
    settings: list[str],
    seeds: int | None,
    report: bool,
) -> None:
    from unmask.evaluation.tables import get_experiment
    from unmask.evaluation.tables.workspace import Workspace, run_experiment, write_report
    from unmask.training import Callback, Interrupted, make_progress

    def on_run(label: str) -> list[Callback]:
        common.error_console.print(f"Training {label}", markup=False)
        return [make_progress(common.error_console, False)]

    workspace = Workspace(folder, on_run, device=device)
    tables = {}
    for name in names:
        try:
            tables[name] = run_experiment(get_experiment(name), scale, on, workspace, settings, seeds)
        except Interrupted as stop:
            common.error_console.print(
                f"Interrupted; the checkpoint of step {stop.step} is saved. The same command continues from there.",
                soft_wrap=True,
            )
            raise typer.Exit(stop.exit_code) from None
        if not as_json:
            print_experiment(tables[name], folder / name)
    if report:
        page = write_report(folder, names)
        common.error_console.print(f"Report: {page}", soft_wrap=True)
    if as_json:
        common.print_json({name: table.as_dict() for name, table in tables.items()})


def print_experiment(table: Table, folder: Path) -> None:
    """Print a table, its notes and where its files are."""
    common.print_table(table.header(), table.lines(), title=table.title)
    common.print_notes([*table.notes, f"Written to {folder}"])


def _list(scale: ScaleName, on: str | None, as_json: bool) -> None:
    """Print every experiment with its runs, and how long they take at this machine's measured speed."""
    from unmask.evaluation.tables import experiments
    from unmask.evaluation.tables.workspace import estimate_hours, measure_speed

    speed = measure_speed()
    rows = estimate_hours(experiments().values(), scale, on, speed)
    if as_json:
        common.print_json({"scale": scale, "flops_per_second": speed, "experiments": rows})
        return
    lines = [
        [
            *(str(row[name]) for name in ("name", "about", "protocol", "runs")),
            "-" if row["hours"] is None else f"{row['hours']:.2g}",
        ]
        for row in rows
    ]
    common.print_table(("", "what", "data", "runs", "hours"), lines, left=(0, 1, 2))
    common.print_notes(
        [f"Hours of training at the {speed / 1e12:.2g} TFLOP/s that a training step reached on this machine just now."]
    )
