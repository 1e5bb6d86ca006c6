"""`unmask fill`: fill the blanks of texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from unmask.cli import common

Words = Annotated[
    list[str],
    typer.Argument(
        help="Texts with blanks: [MASK], [MASK:n] or [MASK:n-m] tokens; '-' reads one text per line from stdin. A "
        "first word without a blank is the checkpoint, a folder or a shipped model ('unmask list shipped'). "
        "Default: stories.",
        metavar="[CKPT] TEXT...",
    ),
]


@common.option_groups
def fill(
    words: Words,
    *,
    top: Annotated[
        int | None,
        typer.Option(min=1, help="List this many alternatives per masked token, with probabilities, and do not fill."),
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the most likely token.")] = False,
    steps: common.Steps = None,
    seed: common.Seed = 0,
    sampling: common.GenerationOptions,
    batch_size: common.BatchSize = None,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Fill the blanks of one or more texts.

    Examples:

        unmask fill "Once upon a [MASK], there was a [MASK:3]."

        unmask fill runs/mine "The [MASK] sat on the [MASK:3]."

        unmask fill "The [MASK:2-6] sat on the mat."

        unmask fill "The [MASK:8] was happy." --with cat --characters 20-40

        unmask fill '{"name": "[MASK:8]"[MASK:24]' --json-schema person.json

        unmask fill "One [MASK:6] day." --greedy --order confidence

        unmask fill "Once upon a [MASK], there was a [MASK]." --top 5

        cat lines.txt | unmask fill - --greedy --json
    """
    checkpoint, texts = common.split_arguments(words, "fill", blanks=True)
    from unmask.generation_config import greedy_temperature

    temperature = greedy_temperature(greedy, sampling.temperature)
    options = replace(sampling, temperature=temperature).arguments(steps)
    lm = model.load(checkpoint)
    if top is not None:
        _print_alternatives(texts, lm.top_tokens(texts, top), as_json)
        return
    with (
        common.out_of_memory_advice(batch_size, sampling.particles),
        common.progress("filling", len(texts), quiet=as_json) as advance,
    ):
        filled = lm.fill_details(texts, seed=seed, batch_size=batch_size, progress=advance, **options)
    report = common.generation_report(lm, options, filled)
    common.print_result(report, "\n".join(one.text for one in filled), as_json)


def _print_alternatives(texts: list[str], found: list[list[list[tuple[str, float]]]], as_json: bool) -> None:
    report, lines = [], []
    for text, masks in zip(texts, found, strict=True):
        as_dicts = [[{"token": token, "probability": p} for token, p in one] for one in masks]
        report.append({"text": text, "masks": as_dicts})
        lines.append(text)
        for number, one in enumerate(masks, start=1):
            lines.append(f"  {number}: " + ", ".join(f"{token.strip() or repr(token)} {p:.3f}" for token, p in one))
    common.print_result({"texts": report}, "\n".join(lines), as_json)
