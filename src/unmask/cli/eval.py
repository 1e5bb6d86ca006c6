"""`unmask eval`: the perplexity of a checkpoint on held-out text, and the group of the other evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from unmask.cli import common
from unmask.cli.eval_generation import generation
from unmask.cli.eval_glue import glue
from unmask.cli.eval_harness import harness
from unmask.cli.eval_tasks import code, puzzles
from unmask.cli.eval_translation import translation
from unmask.cli.eval_zero_shot import zero_shot

if TYPE_CHECKING:
    from unmask.data.length_policies import Policy
    from unmask.likelihood import Bound, Evaluation, Precision

UNITS = {
    "bits_per_token": "bits/token",
    "bits_per_byte": "bits/byte",
    "bits_per_char": "bits/char",
    "perplexity": "perplexity",
}
WIDTH = 20
"""Characters of a text shown in the table of several texts."""


class EvalGroup(TyperGroup):
    """A group with a default command: `unmask eval CKPT` is `unmask eval perplexity CKPT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if named else ["perplexity", *args])


app = typer.Typer(
    cls=EvalGroup,
    help="Evaluate a checkpoint: perplexity on held-out text (the default) or other data sets, generated texts, GLUE, "
    "tasks of lm-evaluation-harness, puzzles, code or translation.",
)
app.command("code")(code)
app.command("generation")(generation)
app.command("glue")(glue)
app.command("harness")(harness)
app.command("puzzles")(puzzles)
app.command("translation")(translation)
app.command("zero-shot")(zero_shot)


@app.command("perplexity")
@common.option_groups
def perplexity(
    checkpoint: common.Checkpoint = None,
    *,
    held_out: common.HeldOutOptions,
    steps: common.BoundSteps = None,
    precision: Annotated[
        float | None, typer.Option(min=1e-5, help="Draw until the Monte-Carlo error is below this, in bits per token.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Use this many evenly spaced rows; bits per byte are then not reported.")
    ] = None,
    batch_size: common.BatchSize = None,
    seed: common.BoundSeed = 0,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Bits per token, byte and character and perplexity with errors; exit with code 1 if two estimators disagree.

    Examples:

        unmask eval runs/mine

        unmask eval runs/mine --data book.txt --steps 64 --steps 256 --precision 0.005

        unmask eval --data reviews.jsonl.zst --field body

        unmask eval stories-ar --data book.txt --json

    Other evaluations, each with its own --help: unmask eval zero-shot (the data sets of the paper), generation (judged
    samples), glue (fine-tuning on GLUE), harness (tasks of lm-evaluation-harness), puzzles, code (blanks in functions)
    and translation (BLEU).
    """
    from unmask.evaluation.perplexity import evaluation_rows
    from unmask.likelihood import count_draws

    lm = model.load(checkpoint)
    table = evaluation_rows(lm, held_out.data, held_out.separator, rows, held_out.field)
    discrete = tuple(steps or ())
    total = None if precision else count_draws(lm.config.objective, table, len(discrete))
    with common.out_of_memory_advice(batch_size), common.progress("scoring", total, quiet=as_json) as advance:
        result = lm.evaluate(
            table, steps=discrete, seed=seed, precision=precision, batch_size=batch_size, progress=advance
        )
    print_evaluation(result, lm.config.policy, precision, as_json)


def print_evaluation(
    result: Evaluation, policy: Policy, precision: Precision, as_json: bool, texts: Sequence[str] = ()
) -> None:
    """Print bounds with their errors, and those of each of several texts; exit with code 1 if estimators disagree."""
    from unmask.likelihood import LEARNED_PADDING_NOTE

    if as_json:
        common.print_json(result.as_dict())
    else:
        _print_bounds(result)
        if len(texts) > 1:
            _print_texts(result.headline, texts)
        notes = _explain_errors(result.headline, precision)
        common.print_notes([*notes, LEARNED_PADDING_NOTE] if policy.supervises_padding else notes)
    if result.disagreement:
        common.error_console.print(f"unmask: {result.disagreement}", style="bold red")
        raise typer.Exit(1)


def _print_bounds(result: Evaluation) -> None:
    """Print two bounds per table, which fits into 80 columns."""
    from unmask.likelihood import format_with_errors

    bounds = [*result.bounds.values(), *result.discrete.values()]
    for start in range(0, len(bounds), 2):
        shown = bounds[start : start + 2]
        columns = [f"{result.headline.tokens:,} tokens", *(bound.estimator for bound in shown)]
        rows = [[label, *(format_with_errors(bound, unit) for bound in shown)] for unit, label in UNITS.items()]
        common.print_table(columns, rows)


def _print_texts(total: Bound, texts: Sequence[str]) -> None:
    """Print one row for each text and one for all of them."""
    from unmask.likelihood import format_tokens, format_with_errors

    rows = []
    for name, bound in zip((*texts, "all"), (*total.each, total), strict=True):
        shown = " ".join(name.split())
        shown = shown if len(shown) <= WIDTH else f"{shown[: WIDTH - 1]}…"
        units = (format_with_errors(bound, unit) for unit in ("bits_per_char", "perplexity"))
        rows.append((escape(shown), format_tokens(bound), *units))
    common.print_table(("text", "tokens", "bits/char", "perplexity"), rows)


def _explain_errors(bound: Bound, precision: Precision) -> list[str]:
    """Say what the errors after each ± are, and how to make the Monte-Carlo error smaller."""
    from unmask.likelihood import SCORE_PRECISION

    errors = [] if bound.exact else ["± Monte-Carlo error"]
    if bound.error("bits_per_token", "data") is not None:
        errors.append("± data error (spread over documents)")
    notes = [", ".join(errors)] if errors else []
    if precision is None or bound.exact:
        return notes
    target = SCORE_PRECISION if precision == "auto" else precision
    if (bound.error("bits_per_token") or 0.0) <= target:
        note = f"Drawn until the error was at most {target:g} bits per token; lower --precision for a smaller one."
    elif precision == "auto":
        note = f"Stopped after {bound.draws:,} draws; --precision {target:g} draws until that error is reached."
    else:
        note = (
            f"The error is above the target of {precision:g} bits per token after {bound.draws:,} draws, the maximum."
        )
    return [*notes, note]
