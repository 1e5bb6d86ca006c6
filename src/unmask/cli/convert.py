"""`unmask convert`: published weights to a checkpoint, and back."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from unmask.cli.common import Json, print_result


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A Lightning .ckpt, a Hugging Face folder (also of LLaDA or Dream), or a state dict file.",
            metavar="SRC",
        ),
    ],
    target: Annotated[Path, typer.Argument(help="The checkpoint folder to write.", metavar="DST")],
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or name of the tokenizer; without one the checkpoint works on ids only.")
    ] = None,
    weights: Annotated[Literal["ema", "raw"], typer.Option(help="Which weights of a Lightning checkpoint.")] = "ema",
    time_conditioning: Annotated[
        bool, typer.Option("--time-conditioning", help="Keep the network conditioned on time.")
    ] = False,
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens per row. Default: that of config.json, else 1024.")
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(min=1, help="Attention heads, if the file does not determine them. Default: width / 64."),
    ] = None,
    objective: Annotated[
        Literal["subs", "sedd"], typer.Option(help="Training objective of a masked network.")
    ] = "subs",
    policy: Annotated[
        str | None,
        typer.Option(help="Length policy of the training: packed (default), or padded (default with a chat template)."),
    ] = None,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="SRC is a checkpoint of unmask; write the published key names.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Convert published weights. Code stored in a checkpoint is never run.

    Examples:

        unmask convert mdlm.ckpt runs/mdlm-owt --tokenizer gpt2 --length 1024

        unmask convert runs/mdlm-owt published.safetensors --reverse

        unmask convert downloads/LLaDA-8B-Instruct models/llada
    """
    from unmask import convert as conversion

    report: conversion.ExportReport | conversion.ConversionReport
    if reverse:
        report = conversion.export(source, target)
    else:
        report = conversion.convert(
            source,
            target,
            tokenizer=tokenizer,
            weights=weights,
            time_conditioning=time_conditioning,
            length=length,
            heads=heads,
            objective=objective,
            policy=policy,
        )
    text = f"Wrote {target}: {report.parameters:,} parameters."
    if not reverse:
        text += f"\nNext: unmask sample {shlex.quote(str(target))} --steps 64"
    print_result(asdict(report), text, as_json)
