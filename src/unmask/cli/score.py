"""`unmask score`: the likelihood of a text, with its error."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.cli.common import BatchSize, BoundSteps, Json, Seed, Where, room_for
from unmask.cli.grouping import grouped
from unmask.cli.words import split_texts


@grouped
def score(
    words: Annotated[
        list[str],
        typer.Argument(
            help="Texts; '-' reads one a line from stdin. Of several words the first is the checkpoint: a folder, or a "
            "model that ships ('unmask list shipped'); a single word is a text for 'stories'.",
            metavar="[CKPT] TEXT...",
        ),
    ],
    *,
    given: Annotated[str | None, typer.Option(help="Condition on this text, which is read but not counted.")] = None,
    steps: BoundSteps = None,
    precision: Annotated[float, typer.Option(min=1e-4, help="Monte-Carlo error to reach, in bits per token.")] = 0.02,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    where: Where,
    as_json: Json = False,
) -> None:
    """Bound -log p(text) by two estimators that must agree; exit code 1 if they do not.

    Examples:

        unmask score "Once upon a time, there was a little girl."

        unmask score stories-ar "Once upon a time, there was a little girl." "There was a time."

        unmask score runs/mine "of the list." --given "Return a copy " --steps 64 --json
    """
    from unmask.cli.report import finish

    checkpoint, lines = split_texts(words)
    lm = where.load(checkpoint)
    with room_for(batch_size):
        result = lm.judge(lines, given, steps=tuple(steps or ()), precision=precision, seed=seed, batch_size=batch_size)
    finish(result, as_json)
