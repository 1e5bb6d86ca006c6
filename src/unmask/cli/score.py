"""`unmask score`: the likelihood of texts, with its error."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.cli.common import (
    BatchSize,
    BoundSteps,
    Json,
    ModelOptions,
    Seed,
    option_groups,
    out_of_memory_advice,
    progress,
    split_arguments,
)
from unmask.cli.eval import print_evaluation

Words = Annotated[
    list[str],
    typer.Argument(
        help="Texts; '-' reads one per line from stdin. The first of several words is the checkpoint, a folder or a "
        "shipped model ('unmask list shipped'); a single word is a text for 'stories'.",
        metavar="[CKPT] TEXT...",
    ),
]
Precision = Annotated[
    float,
    typer.Option(min=1e-4, help="Target Monte-Carlo error in bits per token; half the error takes 4 times as long."),
]


@option_groups
def score(
    words: Words,
    *,
    given: Annotated[str | None, typer.Option(help="Condition on this text, which is not counted.")] = None,
    steps: BoundSteps = None,
    precision: Precision = 0.05,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    model: ModelOptions,
    as_json: Json = False,
) -> None:
    """Bound -log p(text) with two estimators; exit with code 1 if they disagree.

    Examples:

        unmask score "Once upon a time, there was a little girl."

        unmask score stories-ar "Once upon a time, there was a little girl." "There was a time."

        unmask score runs/mine "of the list." --given "Return a copy " --steps 64 --json
    """
    checkpoint, texts = split_arguments(words, "score")
    lm = model.load(checkpoint)
    with out_of_memory_advice(batch_size), progress("scoring", None, quiet=as_json) as advance:
        result = lm.score_details(
            texts,
            given,
            steps=tuple(steps or ()),
            precision=precision,
            seed=seed,
            batch_size=batch_size,
            progress=advance,
        )
    print_evaluation(result, lm.config.policy, precision, as_json)
