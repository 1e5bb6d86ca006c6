"""`unmask eval puzzles`: how many held-out puzzles a checkpoint solves, by order, token rule and number of calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.common import BatchSize, Json, Seed, Where, console
from unmask.cli.contests import Ways, hold, steps_word
from unmask.cli.grouping import grouped
from unmask.cli.outputs import Out, check_outputs, deliver

if TYPE_CHECKING:
    from unmask.evaluation.contests.report import Row
    from unmask.evaluation.puzzles.contest import Contest

Run = Annotated[str, typer.Argument(help="A run of 'unmask train sudoku', 'paths', or of their twins.", metavar="CKPT")]
Count = Annotated[int | None, typer.Option(min=1, help="How many held-out items; 1,000, or all where they are fewer.")]
Plot = Annotated[Path | None, typer.Option(help="Draw accuracies, and errors against calls: .png, .svg, .pdf.")]


@grouped
def puzzles(
    checkpoint: Run,
    *,
    twin: Annotated[str | None, typer.Option(help="An autoregressive checkpoint of the same puzzles.")] = None,
    ways: Ways,
    count: Count = None,
    seed: Seed = 0,
    batch_size: BatchSize = None,
    out: Out = None,
    plot: Plot = None,
    where: Where,
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
    from unmask.evaluation.puzzles.contest import Contest
    from unmask.evaluation.puzzles.picture import draw

    check_outputs(out, plot)
    ways_for = ways.chosen()
    models = where.load_all(checkpoint, twin)
    contest = Contest.of(models[0], count, seed, batch_size)
    entries = [(lm, ways_for(lm)) for lm in models]
    hold(contest, entries, "solving", batch_size, quiet=as_json)
    deliver(contest.as_dict(), lambda: _show(contest), out, as_json)
    if plot is not None:
        draw(contest.rows, contest.source.name, plot)


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
    shares = [f"{100 * found[name].value:.1f}" for name in ("cells", "valid")]
    cost = [f"{found['calls'].value:.1f}", f"{1000 * found['seconds'].value:.2f}"]
    return [
        row.way,
        row.rule,
        steps_word(row),
        f"{solved.value:.1f} ({solved.low:.1f}–{solved.high:.1f})",
        *shares,
        *cost,
    ]
