"""`unmask eval`: the perplexity of a checkpoint on held-out text; beside it, `generation`, `puzzles` and `code`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from unmask.cli.common import BatchSize, BoundSteps, Checkpoint, Json, Seed, Where, progress, room_for
from unmask.cli.eval_generation import generation
from unmask.cli.eval_tasks import code, puzzles
from unmask.cli.options import HeldOut, grouped

DEFAULT = "perplexity"


class EvalGroup(TyperGroup):
    """A group whose first word may be left out: `unmask eval CKPT` is `unmask eval perplexity CKPT`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if named else [DEFAULT, *args])


app = typer.Typer(cls=EvalGroup)
app.command("code")(code)
app.command("generation")(generation)
app.command("puzzles")(puzzles)


@app.command(DEFAULT)
@grouped
def perplexity(
    checkpoint: Checkpoint = None,
    *,
    held_out: HeldOut,
    steps: BoundSteps = None,
    precision: Annotated[
        float | None, typer.Option(min=1e-5, help="Draw until the Monte-Carlo error is this many bits per token.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Only so many rows, evenly spread; bits per byte are then not given.")
    ] = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    where: Where,
    as_json: Json = False,
) -> None:
    """Bits per token, byte and character and perplexity, each with its error; exit code 1 if the estimators disagree.

    Examples:

        unmask eval runs/mine

        unmask eval runs/mine --data book.txt --steps 64 --steps 256 --precision 0.005

        unmask eval --data reviews.jsonl.zst --field body

        unmask eval stories-ar --data book.txt --json

    'unmask eval generation --help' judges the texts that a checkpoint writes, 'unmask eval puzzles --help' counts the
    puzzles that it solves, 'unmask eval code --help' the blanks of functions that it fills.
    """
    from unmask.cli.report import fill_words, finish, precision_words
    from unmask.evaluation.perplexity import evaluation_rows
    from unmask.likelihood import count_draws

    lm = where.load(checkpoint)
    table = evaluation_rows(lm, held_out.data, held_out.separator, rows, held_out.field)
    wanted = tuple(steps or ())
    total = None if precision else count_draws(lm.config.objective, table, len(wanted))
    with room_for(batch_size), progress("scoring", total, quiet=as_json) as advance:
        result = lm.evaluate(
            table, steps=wanted, seed=seed, precision=precision, batch_size=batch_size, progress=advance
        )
    finish(result, as_json, fill_words(lm.config.policy), precision_words(result.headline, precision))
