"""`unmask eval puzzles` and `unmask eval code`: accuracy by order, token rule and number of network calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from unmask.cli import common

if TYPE_CHECKING:
    from unmask.evaluation.code import CodeEvaluation
    from unmask.evaluation.statistics import Estimate
    from unmask.evaluation.tasks import PuzzleEvaluation, Strategy, TaskEvaluation, TaskResult
    from unmask.pipeline import MaskedDiffusionLM

    Column = Callable[[dict[str, Estimate]], str]


@dataclass(frozen=True)
class StrategyOptions:
    """Sampling strategies; every combination of the options is evaluated."""

    order: Annotated[
        list[str] | None,
        typer.Option(
            help="uniform, left_to_right, confidence, margin, entropy, threshold, entropy_bounded or planner; "
            "repeatable. Default without --sampler: the first six.",
        ),
    ] = None
    sampler: common.Samplers = None
    rule: Annotated[
        list[str] | None, typer.Option(help="Token rule: greedy or stochastic; repeatable. Default: both.")
    ] = None
    steps: common.StepCounts = None

    def load(
        self, model: common.ModelOptions, checkpoint: str, twin: str | None
    ) -> list[tuple[MaskedDiffusionLM, list[Strategy]]]:
        """Validate the options, and load the checkpoints with the strategies that apply to each."""
        from unmask.evaluation.generation import parse_steps
        from unmask.evaluation.tasks import ORDERS, TOKEN_RULES, make_strategies, parse_choices

        rules = parse_choices(self.rule or list(TOKEN_RULES), TOKEN_RULES, "token rule")
        counts = parse_steps(self.steps or ["none"])
        orders = self.order or ([] if self.sampler else list(ORDERS))
        samplers = [common.parse_sampler(text) for text in self.sampler or []]
        models = [model.load(path) for path in (checkpoint, twin) if path is not None]
        return [(lm, make_strategies(lm, orders, samplers, rules, counts)) for lm in models]


@common.option_groups
def puzzles(
    checkpoint: Annotated[
        str, common.checkpoint_argument("A run of 'unmask train sudoku', 'sudoku-ar', 'paths' or 'paths-ar'.")
    ],
    *,
    twin: Annotated[str | None, typer.Option(help="Autoregressive checkpoint of the same puzzles.")] = None,
    strategies: StrategyOptions,
    count: Annotated[
        int | None, typer.Option(min=1, help="Number of held-out puzzles. Default: 1,000, or all if there are fewer.")
    ] = None,
    seed: common.Seed = 0,
    batch_size: common.BatchSize = None,
    out: common.Out = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot accuracies, and errors against calls: a .png, .svg or .pdf.")
    ] = None,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Puzzles solved exactly, correct cells, valid answers, calls and seconds for every sampling strategy.

    The givens are frozen and all other cells are masked. Solved puzzles have a 95% Wilson interval, correct cells a 95%
    bootstrap interval. A valid answer differs from the expected one only if a puzzle has several solutions.

    Examples:

        unmask eval puzzles runs/sudoku

        unmask eval puzzles runs/sudoku --twin runs/sudoku-ar --plot sudoku.png --out sudoku.json

        unmask eval puzzles runs/paths --order margin --order uniform --rule greedy --steps 1 --steps 2 --steps none
    """
    from unmask.evaluation.tasks import PuzzleEvaluation
    from unmask.plots.evaluation import draw_puzzles

    common.check_outputs(out, plot)
    entries = strategies.load(model, checkpoint, twin)
    evaluation = PuzzleEvaluation.of(entries[0][0], count, seed, batch_size)
    _run(evaluation, entries, "solving", batch_size, quiet=as_json)
    common.print_report(evaluation.as_dict(), lambda: _print_puzzles(evaluation), out, as_json)
    if plot is not None:
        draw_puzzles(evaluation.rows, evaluation.source.name, plot)


@common.option_groups
def code(
    checkpoint: Annotated[str, common.checkpoint_argument("A run of 'unmask train code' or 'code-ar'.")],
    *,
    twin: Annotated[str | None, typer.Option(help="Autoregressive checkpoint of the same functions.")] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of blank: expression (2 to 8 tokens), line (6 to 20) or lines (21 to 48); repeatable. "
            "Default: all."
        ),
    ] = None,
    strategies: StrategyOptions,
    count: Annotated[int, typer.Option(min=1, help="Maximum number of held-out functions for each kind.")] = 500,
    seed: common.Seed = 0,
    batch_size: common.BatchSize = None,
    out: common.Out = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the rates against calls: a .png, .svg or .pdf.")] = None,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """How often a function with a filled blank parses, and the blank is restored, for every sampling strategy.

    A blank is a piece of syntax in a function of a held-out package; its number of tokens is given. A masked model sees
    the function on both sides of the blank. The autoregressive checkpoint continues the text before it, and the rest of
    the function is appended. Rates have 95% Wilson intervals, correct tokens a 95% bootstrap interval.

    Examples:

        unmask eval code runs/code

        unmask eval code runs/code --twin runs/code-ar --out code.json

        unmask eval code runs/code --twin runs/code-ar --rule greedy --steps 1 --steps 4 --steps none --plot code.png

        unmask eval code runs/code --kind line --order margin --order left_to_right --count 100 --json
    """
    from unmask.evaluation.code import SIZES, CodeEvaluation
    from unmask.evaluation.tasks import parse_choices
    from unmask.plots.evaluation import draw_code

    common.check_outputs(out, plot)
    kinds = parse_choices(kind or list(SIZES), SIZES, "blank of the kind")
    entries = strategies.load(model, checkpoint, twin)
    evaluation = CodeEvaluation.of(entries[0][0], kinds, count, seed, batch_size)
    _run(evaluation, entries, "filling", batch_size, quiet=as_json)
    common.print_report(evaluation.as_dict(), lambda: _print_code(evaluation), out, as_json)
    if plot is not None:
        draw_code(evaluation.rows, plot)


def _run(
    evaluation: TaskEvaluation,
    entries: Sequence[tuple[MaskedDiffusionLM, Sequence[Strategy]]],
    description: str,
    batch_size: int | None,
    quiet: bool,
) -> None:
    """Evaluate every model with its strategies, after checking that the task suits all of them."""
    for lm, _ in entries:
        evaluation.check(lm)
    work = evaluation.size * sum(len(ways) for _, ways in entries)
    with common.out_of_memory_advice(batch_size), common.progress(description, work, quiet, even=False) as advance:
        for lm, ways in entries:
            evaluation.run(lm, ways, advance)


def _print_puzzles(evaluation: PuzzleEvaluation) -> None:
    columns: dict[str, Column] = {
        "solved, %": lambda found: _interval(found["accuracy"], digits=1),
        "cells": lambda found: f"{100 * found['cells'].value:.1f}",
        "valid": lambda found: f"{100 * found['valid'].value:.1f}",
        "calls": lambda found: f"{found['calls'].value:.1f}",
        "ms": lambda found: f"{1000 * found['seconds'].value:.2f}",
    }
    _print_table(evaluation.rows, columns)
    common.console.print(
        f"{evaluation.size} held-out puzzles of '{evaluation.source.name}'; solved with a 95% interval; % of "
        "masked cells correct, % of answers valid; calls and milliseconds per puzzle.",
    )


def _print_code(evaluation: CodeEvaluation) -> None:
    """Print one table per kind of blank, which fits into 80 columns."""
    columns: dict[str, Column] = {
        "parses, %": lambda found: _interval(found["parses"]),
        "exact, %": lambda found: _interval(found["exact"]),
        "right": lambda found: f"{100 * found['tokens'].value:.1f}",
        "calls": lambda found: f"{found['calls'].value:.1f}",
        "ms": lambda found: f"{1000 * found['seconds'].value:.1f}",
    }
    for kind, blanks in evaluation.groups.items():
        common.console.print(f"{kind}: {len(blanks)} blanks in held-out functions")
        _print_table([row for row in evaluation.rows if row.kind == kind], columns)
    common.console.print(
        "% of functions that parse, and of blanks restored up to white space, with 95% intervals; % of correct tokens; "
        "calls and milliseconds per blank.",
        soft_wrap=True,
    )


def _print_table(rows: Sequence[TaskResult], columns: dict[str, Column]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("", "tokens", "steps", *columns):
        left = heading in ("", "tokens")
        table.add_column(heading, no_wrap=not heading, overflow="fold", justify="left" if left else "right")
    for row in rows:
        steps = "any" if row.adaptive else "-" if row.steps is None else str(row.steps)
        table.add_row(row.strategy, row.rule, steps, *(column(row.metrics) for column in columns.values()))
    common.print_fitting(table)


def _interval(rate: Estimate, digits: int = 0) -> str:
    value, low, high = (100 * (x or 0.0) for x in (rate.value, rate.low, rate.high))
    return f"{value:.1f} ({low:.{digits}f}–{high:.{digits}f})"
