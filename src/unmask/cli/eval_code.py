"""`unmask eval code`: blanks in held-out functions, filled by order, token rule and number of calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.common import BatchSize, Json, Seed, Where, console
from unmask.cli.contests import Ways, hold, steps_word
from unmask.cli.grouping import grouped
from unmask.cli.outputs import Out, check_outputs, deliver

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.evaluation.code.contest import Contest
    from unmask.evaluation.code.report import Row
    from unmask.evaluation.generation.bootstrap import Estimate

Run = Annotated[str, typer.Argument(help="A run of 'unmask train code', or of its twin 'code-ar'.", metavar="CKPT")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        help="What is taken out: expression (2 to 8 tokens), line (6 to 20), lines (21 to 48); repeatable. Without it "
        "each of them."
    ),
]
Count = Annotated[
    int, typer.Option(min=1, help="Held-out functions with a blank of each kind, where there are as many.")
]


@grouped
def code(
    checkpoint: Run,
    *,
    twin: Annotated[str | None, typer.Option(help="An autoregressive checkpoint of the same functions.")] = None,
    kind: Kinds = None,
    ways: Ways,
    count: Count = 500,
    seed: Seed = 0,
    batch_size: BatchSize = None,
    out: Out = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the rates against calls: .png, .svg, .pdf.")] = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """How often a function with a filled blank parses, and the blank holds what it held, for every way to unmask.

    A blank is a piece of syntax in a function of a package that was held out; its number of tokens is told. A masked
    model sees the function before and behind it; the twin writes as many tokens from what stands before, and what
    follows is put behind them. Rates have Wilson's 95% intervals, the share of right tokens one of a bootstrap.

    Examples:

        unmask eval code runs/code

        unmask eval code runs/code --twin runs/code-ar --out code.json

        unmask eval code runs/code --twin runs/code-ar --rule greedy --steps 1 --steps 4 --steps none --plot code.png

        unmask eval code runs/code --kind line --order margin --order left_to_right --count 100 --json
    """
    from unmask.evaluation.code.blanks import parse_kinds
    from unmask.evaluation.code.contest import Contest
    from unmask.evaluation.code.picture import draw

    check_outputs(out, plot)
    ways_for = ways.chosen()
    kinds = parse_kinds(kind or ["expression", "line", "lines"])
    models = where.load_all(checkpoint, twin)
    entries = [(lm, ways_for(lm)) for lm in models]
    contest = Contest.of(models[0], kinds, count, seed, batch_size)
    hold(contest, entries, "filling", batch_size, quiet=as_json)
    deliver(contest.as_dict(), lambda: _show(contest), out, as_json)
    if plot is not None:
        draw(contest.rows, plot)


def _show(contest: Contest) -> None:
    """A table for each kind, which fits 80 characters, and what the figures are."""
    for kind, blanks in contest.blanks.items():
        console.print(f"{kind}: {len(blanks)} blanks in held-out functions", highlight=False)
        console.print(_table([row for row in contest.rows if row.kind == kind]))
    console.print(
        "% of functions that ast.parse takes, and of blanks filled with what was there (but for white space), with 95% "
        "intervals; % of tokens that are right; calls and milliseconds a blank.",
        highlight=False,
        soft_wrap=True,
    )


def _table(rows: Sequence[Row]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for words in ("", "tokens"):
        table.add_column(words, no_wrap=True)
    for words in ("steps", "parses, %", "exact, %", "right", "calls", "ms"):
        table.add_column(words, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_words(row))
    return table


def _words(row: Row) -> list[str]:
    """A row of the table."""
    found = row.figures
    cost = [f"{found['calls'].value:.1f}", f"{1000 * found['seconds'].value:.1f}"]
    shares = [_share(found["parses"]), _share(found["exact"]), f"{100 * found['tokens'].value:.1f}"]
    return [row.way, row.rule, steps_word(row), *shares, *cost]


def _share(rate: Estimate) -> str:
    value, low, high = (100 * (x or 0.0) for x in (rate.value, rate.low, rate.high))
    return f"{value:.1f} ({low:.0f}–{high:.0f})"
