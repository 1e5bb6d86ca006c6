"""`unmask edit`: rewrite a part of a text."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from unmask.cli import common
from unmask.errors import UnmaskError

Strength = Annotated[
    float | None, typer.Option(help="Fraction of the tokens to rewrite, the least likely ones. Default: 0.3.")
]
Spans = Annotated[
    list[str] | None,
    typer.Option(help="Characters to rewrite: 4-9 is from 4 up to but not including 9, counted from 0; repeatable."),
]
Keep = Annotated[
    list[str] | None, typer.Option(help="Words to keep; everything else is rewritten; repeatable.", metavar="WORDS")
]


@common.option_groups
def edit(
    words: common.Texts,
    *,
    strength: Strength = None,
    span: Spans = None,
    keep: Keep = None,
    steps: common.Steps = None,
    seed: common.Seed = 0,
    sampling: common.GenerationOptions,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Rewrite the least likely tokens of a text, some of its characters, or all but some words.

    Examples:

        unmask edit "Once upon a time there was a colourless green idea." --strength 0.3

        unmask edit "The cat sat on the mat." --strength 0.5 --steps 2 --order confidence

        unmask edit runs/mine "The cat sat on the mat." --span 4-7

        unmask edit "One day Tim went to the park with his dog." --keep "Tim" --keep "his dog." --steps 8

        unmask edit "The cat sat on the mat." --strength 0.6 --with fish --min-p 0.1
    """
    checkpoint, texts = common.split_arguments(words, "edit")
    from unmask.infilling import DEFAULT_STRENGTH
    from unmask.random import check_seeds

    spans = []
    for one in span or []:
        found = re.fullmatch(r"(\d+)-(\d+)", one)
        if found is None:
            raise UnmaskError(f"--span must be a range of characters such as 4-9, got '{one}'.")
        spans.append((int(found[1]), int(found[2])))
    if strength is None and not spans and not keep:
        strength = DEFAULT_STRENGTH
    places: dict[str, Any] = {"strength": strength, "keep": keep or None, "spans": spans or None}
    options = sampling.arguments(steps)
    check_seeds(seed, len(texts))
    lm = model.load(checkpoint)
    with (
        common.out_of_memory_advice(1, sampling.particles),
        common.progress("editing", len(texts), quiet=as_json) as advance,
    ):
        edited = [
            lm.edit_details(text, seed=seed + i, progress=advance, **places, **options) for i, text in enumerate(texts)
        ]
    report = common.generation_report(lm, options, edited, **places)
    common.print_result(report, "\n".join(one.text for one in edited), as_json)
