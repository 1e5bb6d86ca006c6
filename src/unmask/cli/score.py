"""`unmask score`: the likelihood of a text, with its error."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.cli.common import BatchSize, BoundSteps, Json, Seed, Where, progress, room_for, split_texts
from unmask.cli.options import grouped
from unmask.likelihood import SCORE_PRECISION


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
    precision: Annotated[
        float,
        typer.Option(min=1e-4, help="Monte-Carlo error to reach, in bits per token; half of it takes 4 times as long."),
    ] = SCORE_PRECISION,
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
    from unmask.cli.report import fill_words, finish, precision_words

    checkpoint, lines = split_texts(words)
    lm = where.load(checkpoint)
    with room_for(batch_size), progress("drawing", None, quiet=as_json) as advance:
        result = lm.score_details(
            lines,
            given,
            steps=tuple(steps or ()),
            precision=precision,
            seed=seed,
            batch_size=batch_size,
            progress=advance,
        )
    finish(result, as_json, fill_words(lm.config.policy), precision_words(result.headline, precision))
