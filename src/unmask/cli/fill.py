"""`unmask fill`: fill the blanks of texts."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from unmask.cli.common import (
    BatchSize,
    Json,
    ModelOptions,
    SamplingOptions,
    Seed,
    Steps,
    describe_sampling,
    option_groups,
    out_of_memory_advice,
    print_json,
    progress,
    split_arguments,
)

Words = Annotated[
    list[str],
    typer.Argument(
        help="Texts with blanks: [MASK], [MASK:n] or [MASK:n-m] tokens; '-' reads one text per line from stdin. A "
        "first word without a blank is the checkpoint, a folder or a shipped model ('unmask list shipped'). "
        "Default: stories.",
        metavar="[CKPT] TEXT...",
    ),
]


@option_groups
def fill(
    words: Words,
    *,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the most likely token.")] = False,
    steps: Steps = None,
    seed: Seed = 0,
    sampling: SamplingOptions,
    batch_size: BatchSize = None,
    model: ModelOptions,
    as_json: Json = False,
) -> None:
    """Fill the blanks of one or more texts.

    Examples:

        unmask fill "Once upon a [MASK], there was a [MASK:3]."

        unmask fill runs/mine "The [MASK] sat on the [MASK:3]."

        unmask fill "The [MASK:2-6] sat on the mat."

        unmask fill "The [MASK:8] was happy." --with cat --characters 20-40

        unmask fill "One [MASK:6] day." --greedy --order confidence

        cat lines.txt | unmask fill - --greedy --json
    """
    from unmask.generation_config import greedy_temperature

    temperature = greedy_temperature(greedy, sampling.temperature)
    options = replace(sampling, temperature=temperature).arguments(steps)
    checkpoint, texts = split_arguments(words, "fill", blanks=True)
    lm = model.load(checkpoint)
    with (
        out_of_memory_advice(batch_size, sampling.particles),
        progress("filling", len(texts), quiet=as_json) as advance,
    ):
        filled = lm.fill_details(texts, seed=seed, batch_size=batch_size, progress=advance, **options)
    if as_json:
        print_json({**describe_sampling(lm, options), "texts": [asdict(one) for one in filled]})
        return
    for one in filled:
        typer.echo(one.text)
