"""How a bound is shown: never without its errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from unmask.cli.common import console, errors, print_json
from unmask.likelihood import LEARNT_PADDING_NOTE, Bound, Evaluation, format_with_errors

if TYPE_CHECKING:
    from unmask.data.length_policies import Policy
    from unmask.training.validation import PlannerMetrics

UNITS = {
    "bits_per_token": "bits/token",
    "bits_per_byte": "bits/byte",
    "bits_per_char": "bits/char",
    "perplexity": "perplexity",
}


def finish(result: Evaluation, as_json: bool, *notes: str) -> None:
    """Print an evaluation and what is to be said of it; exit with 1 when the estimators of one bound disagree."""
    if as_json:
        print_json(result.as_dict())
    else:
        for table in evaluation_tables(result):
            console.print(table)
        for note in filter(None, (error_words(result.headline), *notes)):
            console.print(note, style="dim", highlight=False)
    if result.disagreement:
        errors.print(f"unmask: {result.disagreement}", style="bold red", highlight=False)
        raise typer.Exit(1)


def evaluation_tables(result: Evaluation) -> Iterator[Table]:
    """One column an estimator, then the T-step bounds; one row a unit; two columns a table, to fit 80 characters."""
    bounds = [*result.bounds.values(), *result.discrete.values()]
    for start in range(0, len(bounds), 2):
        shown = bounds[start : start + 2]
        table = Table(box=None, header_style="bold")
        table.add_column(f"{result.headline.tokens:,} tokens", no_wrap=True)
        for bound in shown:
            table.add_column(bound.estimator, justify="right", no_wrap=True)
        for unit, words in UNITS.items():
            table.add_row(words, *(format_with_errors(bound, unit) for bound in shown))
        yield table


def error_words(bound: Bound) -> str:
    """What the errors behind each figure of a bound are, as far as it has them."""
    draws = "" if bound.exact else "± error of the draws"
    data = "" if bound.error("bits_per_token", "data") is None else "± error of the data (spread over documents)"
    return ", ".join(filter(None, (draws, data)))


def fill_words(policy: Policy) -> str:
    """What tokens are, where a row is filled with EOS that count."""
    return LEARNT_PADDING_NOTE if policy.supervises_padding else ""


def precision_words(bound: Bound, precision: float | None) -> str:
    """Why there were not more draws, and how to get them; nothing where none were needed or no error was asked for."""
    if bound.exact or precision is None:
        return ""
    reached = (bound.error("bits_per_token") or 0.0) <= precision
    if reached:
        return f"The draws stop at an error of {precision:g} bits per token; --precision asks for a smaller one."
    return f"The error is above the {precision:g} bits per token of --precision after {bound.draws:,} draws, the most."


def bound_words(bound: Bound) -> str:
    """One line for the end of a training run."""
    bits, perplexity = format_with_errors(bound, "bits_per_token"), format_with_errors(bound, "perplexity")
    return f"Validation: {bits} bits per token, perplexity {perplexity}"


def planner_words(loss: Bound, metrics: PlannerMetrics) -> str:
    """One line for the end of a planner's training run; its loss is no bound."""
    bits, error = loss.bits_per_token, loss.error("bits_per_token")
    return f"Validation: {bits:.4f} ± {error:.4f} bits per masked token; {metrics}"
