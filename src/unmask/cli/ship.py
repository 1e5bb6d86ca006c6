"""`unmask ship`: a run made small, with a model card, to be handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.common import Json, console, print_json


def ship(
    run: Annotated[Path, typer.Argument(help="A folder that 'unmask train' wrote.", metavar="RUN")],
    out: Annotated[
        Path, typer.Argument(help="The folder to write: a new one, or one that was shipped before.", metavar="OUT")
    ],
    bound: Annotated[
        list[Path] | None, typer.Option(help="What 'unmask eval --json' wrote, for the model card; repeatable.")
    ] = None,
    judged: Annotated[
        Path | None, typer.Option(help="What 'unmask eval generation --json' wrote, for the model card.")
    ] = None,
    entropy: Annotated[
        Path | None, typer.Option(help="JSON with the source's bits_per_char, stderr and how they are known.")
    ] = None,
    about: Annotated[Path | None, typer.Option(help="Markdown that says what the data are and who made them.")] = None,
    shard_mb: Annotated[int, typer.Option("--shard-mb", min=1, help="Megabytes of the largest file of weights.")] = 10,
    as_json: Json = False,
) -> None:
    """Write a run's newest weights (their average) in bf16, with tokenizer, recipe and a model card.

    The folder opens like any checkpoint and cannot be resumed. Every figure of the model card comes from the run's
    records or from the files you name.

    Examples:

        unmask ship runs/mine models/mine

        unmask eval models/mine --json > held-out.json

        unmask ship runs/mine models/mine --bound held-out.json --judged judged.json --about data.md
    """
    from unmask.convert import ship as shipping

    export = shipping.ship(
        run, out, bounds=bound or (), judged=judged, entropy=entropy, about=about, shard_megabytes=shard_mb
    )
    if as_json:
        print_json(export.as_dict())
        return
    console.print(
        f"Wrote {out}: {export.parameters:,} parameters, {export.bytes / 1e6:.2f} MB. Next: unmask sample {out}",
        highlight=False,
        soft_wrap=True,
    )
