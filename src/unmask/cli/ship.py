"""`unmask ship`: a small copy of a run with a model card, ready to publish."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from unmask.cli.common import Json, print_result


def ship(
    run: Annotated[Path, typer.Argument(help="A folder written by 'unmask train'.", metavar="RUN")],
    out: Annotated[Path, typer.Argument(help="The folder to write, new or written by 'unmask ship'.", metavar="OUT")],
    bound: Annotated[
        list[Path] | None, typer.Option(help="A file of 'unmask eval --json' for the model card; repeatable.")
    ] = None,
    judged: Annotated[
        Path | None, typer.Option(help="A file of 'unmask eval generation --json' for the model card.")
    ] = None,
    entropy: Annotated[
        Path | None, typer.Option(help="JSON with bits_per_char of the source, its stderr and how it is known.")
    ] = None,
    about: Annotated[Path | None, typer.Option(help="Markdown that describes the data.")] = None,
    shard_mb: Annotated[int, typer.Option("--shard-mb", min=1, help="Megabytes of the largest weight file.")] = 10,
    as_json: Json = False,
) -> None:
    """Write a run for publication: its newest averaged weights (EMA) in bf16, tokenizer, recipe and a model card.

    The folder opens like any checkpoint but cannot be resumed. The figures of the model card come from the records of
    the run and from the given files.

    Examples:

        unmask ship runs/mine models/mine

        unmask eval models/mine --json > held-out.json

        unmask ship runs/mine models/mine --bound held-out.json --judged judged.json --about data.md
    """
    from unmask.convert import ship as shipping

    export = shipping.ship(
        run, out, bounds=bound or (), judged=judged, entropy=entropy, about=about, shard_megabytes=shard_mb
    )
    size = f"{export.parameters:,} parameters, {export.bytes / 1e6:.2f} MB"
    print_result(asdict(export), f"Wrote {out}: {size}. Next: unmask sample {shlex.quote(str(out))}", as_json)
