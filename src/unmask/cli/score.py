"""`unmask score`: the likelihood of texts, with its error."""

from __future__ import annotations

from typing import Annotated

import typer

from unmask.cli import common
from unmask.cli.eval import print_evaluation

Precision = Annotated[
    float,
    typer.Option(min=1e-4, help="Target Monte-Carlo error in bits per token; half the error takes 4 times as long."),
]


@common.option_groups
def score(
    words: common.Texts,
    *,
    given: Annotated[str | None, typer.Option(help="Condition on this text, which is not counted.")] = None,
    steps: common.BoundSteps = None,
    precision: Precision = 0.05,
    batch_size: common.BatchSize = None,
    seed: common.Seed = 0,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Bound -log p(text) with two estimators; exit with code 1 if they disagree.

    Examples:

        unmask score "Once upon a time, there was a little girl."

        unmask score stories-ar "Once upon a time, there was a little girl." "There was a time."

        unmask score runs/mine "of the list." --given "Return a copy " --steps 64 --json
    """
    checkpoint, texts = common.split_arguments(words, "score")
    lm = model.load(checkpoint)
    with common.out_of_memory_advice(batch_size), common.progress("scoring", None, quiet=as_json) as advance:
        result = lm.score_details(
            texts,
            given,
            steps=tuple(steps or ()),
            precision=precision,
            seed=seed,
            batch_size=batch_size,
            progress=advance,
        )
    print_evaluation(result, lm.config.policy, precision, as_json, texts)
