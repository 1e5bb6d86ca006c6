"""`unmask fill`: write the blanks of a text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from unmask.cli.common import (
    BatchSize,
    Device,
    Dtype,
    GreedyAbove,
    GreedyTail,
    Json,
    MinP,
    Seed,
    Steps,
    Temperature,
    TopK,
    TopP,
    print_json,
    room_for,
)
from unmask.cli.constraining import Characters, Match, Particles, With, Without, constraints, told
from unmask.cli.ordering import Order, SamplerSpec, sampler_spec
from unmask.cli.words import split_blanks


def fill(
    words: Annotated[
        list[str],
        typer.Argument(
            help="Texts with [MASK], [MASK:n] or [MASK:n-m] blanks; '-' reads lines from stdin. A first word "
            "without a blank is the checkpoint: a folder, or a model that ships ('unmask list shipped'); without it "
            "'stories'.",
            metavar="[CKPT] TEXT...",
        ),
    ],
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely token each time.")] = False,
    steps: Steps = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    greedy_tail: GreedyTail = None,
    greedy_above: GreedyAbove = None,
    match: Match = None,
    with_words: With = None,
    without: Without = None,
    characters: Characters = None,
    particles: Particles = 1,
    order: Order = None,
    sampler: SamplerSpec = None,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "auto",
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
    from unmask.generation import load, token_rule

    rule = token_rule(0.0 if greedy else temperature, top_k, top_p, min_p, greedy_tail, greedy_above)
    constraint = constraints(match, with_words, without, characters)
    way: dict[str, Any] = {"order": order, "sampler": sampler_spec(sampler)}
    checkpoint, lines = split_blanks(words)
    lm = load(checkpoint, device=device, dtype=dtype)
    with room_for(batch_size):
        done = lm.fill_details(
            lines,
            steps=steps,
            seed=seed,
            rule=rule,
            batch_size=batch_size,
            constraint=constraint,
            particles=particles,
            **way,
        )
    if as_json:
        how = {"sampler": lm.sampler(steps, **way).model_dump(), "rule": rule.model_dump()}
        print_json({**how, **told(constraint, particles), "texts": [asdict(one) for one in done]})
        return
    for one in done:
        typer.echo(one.text)
