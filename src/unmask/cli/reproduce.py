"""`unmask reproduce`: the tables and figures of the paper, each as one command."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import common

if TYPE_CHECKING:
    from unmask.evaluation.tables.base import Experiment, ScaleName, Table
    from unmask.training import Callback

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
    jobs: Annotated[
        int,
        typer.Option(min=1, help="Processes that train and measure side by side; small networks share a GPU well."),
    ] = 1,
    finished: Annotated[
        bool, typer.Option("--finished", help="Only show what is finished; train and measure nothing.")
    ] = False,
    device: common.Device = None,
    as_json: common.Json = False,
) -> None:
    """Reproduce a table of the paper: train what is missing, evaluate it, and print it beside the published figures.

    Everything is kept in the folder OUT/SCALE. The same command continues after an interruption, which prints what is
    finished, and experiments share their runs. Each table is written as table.json, table.md and figure.png; 'all' adds
    the page report.html.

    Examples:

        unmask reproduce list --scale small

        unmask reproduce table1 --scale tiny

        unmask reproduce table8 --scale small --on text8-74m --out reproduced

        unmask reproduce table1 training.steps=1000 --seeds 3 --jobs 4

        timeout 590 unmask reproduce table1 --jobs 4

        unmask reproduce all --scale tiny
    """
    from unmask.errors import UnmaskError, did_you_mean
    from unmask.evaluation.processes import sigterm_exits
    from unmask.evaluation.tables import get_experiment
    from unmask.evaluation.tables.base import SCALES, Unfinished
    from unmask.evaluation.tables.workspace import Workspace, run_experiment, write_report
    from unmask.training import Interrupted

    if scale not in SCALES:
        raise UnmaskError(f"There is no scale named '{scale}'.{did_you_mean(scale, SCALES)}")
    chosen: ScaleName = scale  # type: ignore[assignment]
    folder = out / scale
    if what == LIST:
        _list(chosen, on, folder, as_json)
        return
    skipping = Workspace(folder, device=device, missing="skip")
    workspace = skipping if finished else Workspace(folder, _watch_training, device, jobs, _report_training)
    tables = {}
    chosen_experiments = _suited(chosen, on) if what == ALL else [get_experiment(what)]
    for experiment in chosen_experiments:
        own_seeds = None if what == ALL and not experiment.takes_seeds(chosen) else seeds
        make = partial(run_experiment, experiment, chosen, on, settings=settings or [], seeds=own_seeds)
        try:
            with sigterm_exits():
                tables[experiment.name] = make(workspace)
        except (Interrupted, KeyboardInterrupt, SystemExit) as stop:
            saved = f"the checkpoint of step {stop.step} is saved. " if isinstance(stop, Interrupted) else ""
            common.error_console.print(f"Interrupted; {saved}The same command continues from there.", soft_wrap=True)
            with suppress(Unfinished):
                table = make(skipping)
                if not as_json:
                    print_experiment(table, folder / experiment.name)
            raise typer.Exit(getattr(stop, "exit_code", getattr(stop, "code", 128 + SIGINT))) from None
        except UnmaskError as error:  # often data or an extra that one experiment alone needs
            if what != ALL:
                raise
            common.error_console.print(f"{experiment.name} is left out: {error}", soft_wrap=True, markup=False)
            continue
        if not as_json:
            print_experiment(tables[experiment.name], folder / experiment.name)
    if what == ALL and tables:
        common.error_console.print(f"Report: {write_report(folder, list(tables))}", soft_wrap=True)
    if as_json:
        common.print_json({name: table.as_dict() for name, table in tables.items()})
    if left_out := len(chosen_experiments) - len(tables):
        raise UnmaskError(f"{left_out} of {len(chosen_experiments)} experiments are left out; see the reasons above.")


def _watch_training(label: str) -> list[Callback]:
    from unmask.training import make_progress

    common.error_console.print(f"Training {label}", markup=False)
    return [make_progress(common.error_console)]


def _report_training(label: str, done: int, total: int) -> None:
    common.error_console.print(f"Trained {label} ({done} of {total})", markup=False)


def print_experiment(table: Table, folder: Path) -> None:
    """Print a table, its notes and where its files are."""
    common.print_table(table.header(), table.lines(), title=table.title)
    common.print_notes([*table.notes, f"Written to {folder}"])


def _list(scale: ScaleName, on: str | None, folder: Path, as_json: bool) -> None:
    """Print every experiment with its runs, and how long they take at this machine's measured speed."""
    from unmask.evaluation.tables.workspace import Workspace, plan

    found = plan(_suited(scale, on), scale, on, Workspace(folder))
    if as_json:
        common.print_json(found)
        return
    lines = [
        [*(str(row[name]) for name in ("name", "about", "protocol", "runs", "trained")), _format_hours(row["hours"])]
        for row in found["experiments"]
    ]
    common.print_table(("", "what", "data", "runs", "trained", "hours"), lines, left=(0, 1, 2))
    speed, timed = f"{found['flops_per_second'] / 1e12:.2g} TFLOP/s", found["timed_runs"]
    whose = f"of the {timed} trained runs" if timed else "of a training step on this machine just now"
    common.print_notes(
        [
            f"Hours of training at the {speed} {whose}; evaluation comes on top. Experiments share runs: there are "
            f"{found['all']['runs']} in all. {_format_hours(found['left']['hours'])} hours are left for "
            f"{found['left']['runs']} runs; those without hours have operations that are not counted."
        ]
    )


def _suited(scale: ScaleName, on: str | None) -> list[Experiment]:
    """The experiments that have a scale and fit the data."""
    from unmask.data.protocols import get_protocol
    from unmask.evaluation.tables import experiments

    suited = [one for one in experiments().values() if scale in one.scales]
    return [one for one in suited if on is None or one.fits(get_protocol(on))]


def _format_hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
