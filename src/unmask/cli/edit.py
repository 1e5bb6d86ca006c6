"""`unmask edit`: write a part of a text anew."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated, Any

import typer

from unmask.cli.common import Device, Dtype, Json, Seed, Steps, Temperature, TopK, TopP, print_json, room_for
from unmask.cli.ordering import Order, SamplerSpec, sampler_spec
from unmask.cli.words import split_texts
from unmask.errors import UnmaskError


def edit(
    words: Annotated[
        list[str],
        typer.Argument(
            help="The text; '-' reads one a line from stdin. Of several words the first is the checkpoint: a folder, "
            "or a model that ships ('unmask list shipped'); without it 'stories'.",
            metavar="[CKPT] TEXT...",
        ),
    ],
    strength: Annotated[
        float | None, typer.Option(help="The share of the tokens to write anew, the least likely ones; 0.3 by default.")
    ] = None,
    span: Annotated[
        list[str] | None,
        typer.Option(help="Characters to write anew: 4-9 is from 4 to before 9, from 0 on; may be repeated."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="Words to keep; all else is written anew; repeatable.", metavar="WORDS"),
    ] = None,
    steps: Steps = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    order: Order = None,
    sampler: SamplerSpec = None,
    device: Device = None,
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Write a part of a text anew, where the model finds it least likely or where you say.

    Examples:

        unmask edit "Once upon a time there was a colourless green idea." --strength 0.3

        unmask edit "The cat sat on the mat." --strength 0.5 --steps 2 --order confidence

        unmask edit runs/mine "The cat sat on the mat." --span 4-7

        unmask edit "One day Tim went to the park with his dog." --keep "Tim" --keep "his dog." --steps 8
    """
    from unmask.editing import STRENGTH
    from unmask.generation import load, token_rule

    spans = [_span(one) for one in span or []] or None
    if strength is None and not keep and not spans:
        strength = STRENGTH
    options: dict[str, Any] = {"strength": strength, "keep": keep or None, "spans": spans}
    rule = token_rule(temperature, top_k, top_p)
    way: dict[str, Any] = {"steps": steps, "order": order, "sampler": sampler_spec(sampler)}
    checkpoint, texts = split_texts(words, "edit")
    lm = load(checkpoint, device=device, dtype=dtype)
    with room_for(1):
        done = [lm.edit_details(text, **options, **way, seed=seed + i, rule=rule) for i, text in enumerate(texts)]
    if as_json:
        how = {"sampler": lm.sampler(**way).model_dump(), "rule": rule.model_dump()}
        print_json({**how, **options, "texts": [asdict(one) for one in done]})
        return
    for one in done:
        typer.echo(one.text)


def _span(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None:
        raise UnmaskError(f"--span {text} is no span of characters; write it as 4-9.")
    return int(found[1]), int(found[2])
