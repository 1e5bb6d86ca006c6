"""`unmask fill`: write the blanks of a text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from unmask.cli.common import (
    BatchSize,
    Checkpoint,
    Device,
    Dtype,
    Json,
    Seed,
    Steps,
    Temperature,
    TopK,
    TopP,
    print_json,
    read_lines,
    room_for,
)
from unmask.errors import UnmaskError


def fill(
    checkpoint: Checkpoint,
    texts: Annotated[
        list[str], typer.Argument(help="Texts with [MASK] or [MASK:n] blanks; '-' reads lines from stdin.")
    ],
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most likely token each time.")] = False,
    steps: Steps = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    batch_size: BatchSize = None,
    device: Device = None,
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Fill the blanks of texts of any lengths.

    Examples:

        unmask fill runs/demo/mdlm "Return the [MASK:8] of the string."

        cat lines.txt | unmask fill runs/demo/mdlm - --greedy --json
    """
    from unmask.generation import load, token_rule

    rule = token_rule(0.0 if greedy else temperature, top_k, top_p)
    lines = read_lines(texts)
    if not lines:
        raise UnmaskError("Standard input held no text to fill; give lines with [MASK] or [MASK:n] blanks.")
    lm = load(checkpoint, device=device, dtype=dtype)
    with room_for(batch_size):
        done = lm.fill_details(lines, steps=steps, seed=seed, rule=rule, batch_size=batch_size)
    if as_json:
        print_json({"rule": rule.model_dump(), "texts": [asdict(one) for one in done]})
        return
    for one in done:
        typer.echo(one.text)
