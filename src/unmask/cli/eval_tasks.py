"""`unmask eval code`: blanks in held-out functions, filled by order, token rule and number of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli.common import progress, room_for
from unmask.cli.options import sampler_spec

if TYPE_CHECKING:
    from unmask.evaluation.tasks import Strategy, TaskEvaluation, TaskResult
    from unmask.pipeline import MaskedDiffusionLM

    Entry = tuple[MaskedDiffusionLM, Sequence[Strategy]]
from pathlib import Path

from unmask.cli.common import BatchSize, Json, Out, Seed, Where, check_outputs, console, deliver
from unmask.cli.options import grouped

if TYPE_CHECKING:
    from unmask.evaluation.tasks import PuzzleEvaluation
from collections.abc import Sequence

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.evaluation.code import CodeEvaluation
    from unmask.evaluation.statistics import Estimate


@dataclass(frozen=True)
class Ways:
    """The ways in which items are done, every combination of what is named."""

    order: Annotated[
        list[str] | None,
        typer.Option(
            help="uniform, left_to_right, confidence, margin, entropy, threshold, entropy_bounded or planner; "
            "repeatable. Without it, and without --sampler, the first six.",
        ),
    ] = None
    sampler: Annotated[
        list[str] | None, typer.Option(help="Any sampler, as 'name: remdm, strategy: loop'; repeatable.")
    ] = None
    rule: Annotated[
        list[str] | None, typer.Option(help="Tokens: greedy or stochastic; repeatable. Without it both.")
    ] = None
    steps: Annotated[
        list[str] | None,
        typer.Option(help="At most this many network calls; repeatable. 'none', and without it: one token a call."),
    ] = None

    def chosen(self) -> Callable[[MaskedDiffusionLM], list[Strategy]]:
        """What is asked for, as ways of a model; bad words are refused now."""
        from unmask.evaluation.generation import parse_steps
        from unmask.evaluation.tasks import ORDERS, make_strategies, parse_rules

        rules, counts = parse_rules(self.rule or ["greedy", "stochastic"]), parse_steps(self.steps or ["none"])
        orders = self.order or ([] if self.sampler else list(ORDERS))
        specs = [spec for spec in map(sampler_spec, self.sampler or []) if spec is not None]
        return lambda lm: make_strategies(lm, orders, specs, rules, counts)


def hold(evaluation: TaskEvaluation, entries: Sequence[Entry], doing: str, batch_size: int | None, quiet: bool) -> None:
    """Let models do all items, each in its ways, once it is known that every one of them may."""
    for lm, _ in entries:
        evaluation.check(lm)
    work = evaluation.size * sum(len(ways) for _, ways in entries)
    with room_for(batch_size), progress(doing, work, quiet=quiet) as advance:
        for lm, ways in entries:
            evaluation.run(lm, ways, advance)


def steps_word(row: TaskResult) -> str:
    """The number of calls that was asked for, as a table says it."""
    return "any" if row.adaptive else "-" if row.steps is None else str(row.steps)


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
    from unmask.evaluation.tasks import PuzzleEvaluation
    from unmask.plots.tasks import draw_puzzles

    check_outputs(out, plot)
    ways_for = ways.chosen()
    models = where.load_all(checkpoint, twin)
    evaluation = PuzzleEvaluation.of(models[0], count, seed, batch_size)
    entries = [(lm, ways_for(lm)) for lm in models]
    hold(evaluation, entries, "solving", batch_size, quiet=as_json)
    deliver(evaluation.as_dict(), lambda: _show(evaluation), out, as_json)
    if plot is not None:
        draw_puzzles(evaluation.rows, evaluation.source.name, plot)


def _show(evaluation: PuzzleEvaluation) -> None:
    """The table, and what was asked."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for words in ("", "tokens"):
        table.add_column(words, no_wrap=True)
    for words in ("steps", "solved, %", "cells", "valid", "calls", "ms"):
        table.add_column(words, justify="right", no_wrap=True)
    for row in evaluation.rows:
        table.add_row(*_words(row))
    console.print(table)
    console.print(
        f"{len(evaluation.items)} held-out items of '{evaluation.source.name}'; solved with a 95% interval; % of "
        "the cells that are asked, % of answers that break no rule; calls and milliseconds an item.",
        highlight=False,
    )


def _words(row: TaskResult) -> list[str]:
    """A row of the table."""
    found = row.metrics
    solved = found["accuracy"].map(lambda share: 100 * share)
    shares = [f"{100 * found[name].value:.1f}" for name in ("cells", "valid")]
    cost = [f"{found['calls'].value:.1f}", f"{1000 * found['seconds'].value:.2f}"]
    return [
        row.strategy,
        row.rule,
        steps_word(row),
        f"{solved.value:.1f} ({solved.low:.1f}–{solved.high:.1f})",
        *shares,
        *cost,
    ]


CodeRun = Annotated[str, typer.Argument(help="A run of 'unmask train code', or of its twin 'code-ar'.", metavar="CKPT")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        help="What is taken out: expression (2 to 8 tokens), line (6 to 20), lines (21 to 48); repeatable. Without it "
        "each of them."
    ),
]
CodeCount = Annotated[
    int, typer.Option(min=1, help="Held-out functions with a blank of each kind, where there are as many.")
]


@grouped
def code(
    checkpoint: CodeRun,
    *,
    twin: Annotated[str | None, typer.Option(help="An autoregressive checkpoint of the same functions.")] = None,
    kind: Kinds = None,
    ways: Ways,
    count: CodeCount = 500,
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
    from unmask.evaluation.code import CodeEvaluation, parse_kinds
    from unmask.plots.tasks import draw_code

    check_outputs(out, plot)
    ways_for = ways.chosen()
    kinds = parse_kinds(kind or ["expression", "line", "lines"])
    models = where.load_all(checkpoint, twin)
    entries = [(lm, ways_for(lm)) for lm in models]
    evaluation = CodeEvaluation.of(models[0], kinds, count, seed, batch_size)
    hold(evaluation, entries, "filling", batch_size, quiet=as_json)
    deliver(evaluation.as_dict(), lambda: _show_code(evaluation), out, as_json)
    if plot is not None:
        draw_code(evaluation.rows, plot)


def _show_code(evaluation: CodeEvaluation) -> None:
    """A table for each kind, which fits 80 characters, and what the figures are."""
    for kind, blanks in evaluation.blanks.items():
        console.print(f"{kind}: {len(blanks)} blanks in held-out functions", highlight=False)
        console.print(_table([row for row in evaluation.rows if row.kind == kind]))
    console.print(
        "% of functions that ast.parse takes, and of blanks filled with what was there (but for white space), with 95% "
        "intervals; % of tokens that are right; calls and milliseconds a blank.",
        highlight=False,
        soft_wrap=True,
    )


def _table(rows: Sequence[TaskResult]) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for words in ("", "tokens"):
        table.add_column(words, no_wrap=True)
    for words in ("steps", "parses, %", "exact, %", "right", "calls", "ms"):
        table.add_column(words, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_code_words(row))
    return table


def _code_words(row: TaskResult) -> list[str]:
    """A row of the table."""
    found = row.metrics
    cost = [f"{found['calls'].value:.1f}", f"{1000 * found['seconds'].value:.1f}"]
    shares = [_share(found["parses"]), _share(found["exact"]), f"{100 * found['tokens'].value:.1f}"]
    return [row.strategy, row.rule, steps_word(row), *shares, *cost]


def _share(rate: Estimate) -> str:
    value, low, high = (100 * (x or 0.0) for x in (rate.value, rate.low, rate.high))
    return f"{value:.1f} ({low:.0f}–{high:.0f})"
