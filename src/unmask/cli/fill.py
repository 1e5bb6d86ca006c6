"""`unmask fill`: write the blanks of a text."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from unmask.cli.common import BatchSize, Json, Seed, Steps, Where, print_json, progress, room_for, split_blanks
from unmask.cli.options import Constraining, HybridDrawing, Ordering, grouped, told

Words = Annotated[
    list[str],
    typer.Argument(
        help="Texts with [MASK], [MASK:n] or [MASK:n-m] blanks; '-' reads lines from stdin. A first word without a "
        "blank is the checkpoint: a folder, or a model that ships ('unmask list shipped'); without it 'stories'.",
        metavar="[CKPT] TEXT...",
    ),
]


@grouped
def fill(
    words: Words,
    *,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely token each time.")] = False,
    steps: Steps = None,
    seed: Seed = 0,
    drawing: HybridDrawing,
    constraining: Constraining,
    ordering: Ordering,
    batch_size: BatchSize = None,
    where: Where,
    as_json: Json = False,
) -> None:
    """Fill the blanks of texts of any lengths.

    Examples:

        unmask fill "Once upon a [MASK], there was a [MASK:3]."

        unmask fill runs/mine "The [MASK] sat on the [MASK:3]."

        unmask fill "The [MASK:2-6] sat on the mat."

        unmask fill "The [MASK:8] was happy." --with cat --characters 20-40

        unmask fill "One [MASK:6] day." --greedy --order confidence

        cat lines.txt | unmask fill - --greedy --json
    """
    from unmask.generation_config import cooled

    rule = replace(drawing, temperature=cooled(greedy, drawing.temperature)).rule()
    wish, way = constraining.wish(), ordering.way()
    checkpoint, lines = split_blanks(words)
    lm = where.load(checkpoint)
    options: dict[str, Any] = {"steps": steps, "seed": seed, "rule": rule, **wish, **way}
    with (
        room_for(batch_size, constraining.particles),
        progress("filling", len(lines), quiet=as_json) as advance,
    ):
        done = lm.fill_details(lines, **options, batch_size=batch_size, progress=advance)
    if as_json:
        how = {"sampler": lm.sampler(steps, **way).model_dump(), "rule": rule.model_dump()}
        print_json({**how, **told(wish), "texts": [asdict(one) for one in done]})
        return
    for one in done:
        typer.echo(one.text)
