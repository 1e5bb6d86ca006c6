"""`unmask eval puzzles`: how many held-out puzzles a checkpoint solves, by order, token rule and number of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.common import BatchSize, Device, Dtype, Json, Seed, console, print_json, progress, room_for
from unmask.cli.eval_generation import check_outputs
from unmask.cli.ordering import sampler_spec

if TYPE_CHECKING:
    from unmask.evaluation.puzzles.contest import Contest
    from unmask.evaluation.puzzles.report import Row


def puzzles(
    checkpoint: Annotated[
        str, typer.Argument(help="A run of 'unmask train sudoku', 'paths', or of their twins.", metavar="CKPT")
    ],
    twin: Annotated[str | None, typer.Option(help="An autoregressive checkpoint of the same puzzles.")] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(
            help="uniform, left_to_right, confidence, margin, entropy, threshold or entropy_bounded; repeatable. "
            "Without it, and without --sampler, the first six."
        ),
    ] = None,
    sampler: Annotated[
        list[str] | None, typer.Option(help="Any sampler, as 'name: remdm, strategy: loop'; repeatable.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option(help="Tokens: greedy or stochastic; repeatable. Without it both.")
    ] = None,
    steps: Annotated[
        list[str] | None,
        typer.Option(help="At most this many network calls; repeatable. 'none', and without it: one cell a call."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="How many held-out items; 1,000, or all where they are fewer.")
    ] = None,
    seed: Seed = 0,
    batch_size: BatchSize = None,
    out: Annotated[Path | None, typer.Option(help="Write what --json prints into this file as well.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw accuracies, and errors against calls: .png, .svg, .pdf.")
    ] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Items solved exactly, cells right, answers that break no rule, calls and seconds, for every way to unmask.

    What is given stands on the canvas, everything else is masked. Items and cells have 95% intervals (Wilson's; a
    bootstrap over items). An answer may break no rule and not be the expected one only where there are several.

    Examples:

        unmask eval puzzles runs/sudoku

        unmask eval puzzles runs/sudoku --twin runs/sudoku-ar --plot sudoku.png --out sudoku.json

        unmask eval puzzles runs/paths --order margin --order uniform --rule greedy --steps 1 --steps 2 --steps none
    """
    from unmask.evaluation.generation.plan import parse_steps
    from unmask.evaluation.puzzles.contest import ORDERS, Contest, parse_rules, ways_of
    from unmask.generation import load

    check_outputs(out, plot)
    rules, counts = parse_rules(rule or ["greedy", "stochastic"]), parse_steps(steps or ["none"])
    orders = order or ([] if sampler else list(ORDERS))
    samplers = [spec for spec in map(sampler_spec, sampler or []) if spec is not None]
    models = [load(path, device=device, dtype=dtype) for path in (checkpoint, twin) if path is not None]
    contest = Contest.of(models[0], count, seed, batch_size)
    entries = [(lm, ways_of(lm, orders, samplers, rules, counts)) for lm in models]
    for lm in models:
        contest.admit(lm)
    work = len(contest.items) * sum(len(ways) for _, ways in entries)
    with room_for(batch_size), progress("solving", work, quiet=as_json) as advance:
        for lm, ways in entries:
            contest.enter(lm, ways, advance)
    if as_json:
        print_json(contest.as_dict())
    else:
        _show(contest)
    _write(contest, out, plot)


def _show(contest: Contest) -> None:
    """The table, and what was asked."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for words in ("", "tokens"):
        table.add_column(words, no_wrap=True)
    for words in ("steps", "solved, %", "cells", "valid", "calls", "ms"):
        table.add_column(words, justify="right", no_wrap=True)
    for row in contest.rows:
        table.add_row(*_words(row))
    console.print(table)
    console.print(
        f"{len(contest.items)} held-out items of '{contest.source.name}'; solved with a 95% interval; % of the cells "
        "that are asked, % of answers that break no rule; calls and milliseconds an item.",
        highlight=False,
    )


def _words(row: Row) -> list[str]:
    """A row of the table."""
    found = row.figures
    solved = found["accuracy"].map(lambda share: 100 * share)
    steps = "any" if row.adaptive else "-" if row.steps is None else str(row.steps)
    shares = [f"{100 * found[name].value:.1f}" for name in ("cells", "valid")]
    cost = [f"{found['calls'].value:.1f}", f"{1000 * found['seconds'].value:.2f}"]
    return [row.way, row.rule, steps, f"{solved.value:.1f} ({solved.low:.1f}–{solved.high:.1f})", *shares, *cost]


def _write(contest: Contest, out: Path | None, plot: Path | None) -> None:
    from unmask.evaluation.puzzles.picture import draw
    from unmask.files import atomic_text

    if out is not None:
        atomic_text(out, json.dumps(contest.as_dict(), ensure_ascii=False, allow_nan=False, indent=2) + "\n")
    if plot is not None:
        draw(contest.rows, contest.source.name, plot)
