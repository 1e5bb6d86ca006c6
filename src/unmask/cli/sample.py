"""`unmask sample`: new texts from a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
    console,
    print_json,
    progress,
    room_for,
)


def sample(
    checkpoint: Checkpoint,
    n: Annotated[int, typer.Option("-n", min=1, help="How many texts.")] = 1,
    prompt: Annotated[str, typer.Option(help="The text to go on from.")] = "",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of the whole canvas, prompt included.")] = None,
    steps: Steps = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    batch_size: BatchSize = None,
    png: Annotated[Path | None, typer.Option(help="Draw the canvas of the first text being unmasked.")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Generate texts.

    Examples:

        unmask sample runs/demo/mdlm -n 4 --length 128 --steps 64

        unmask sample runs/demo/mdlm --prompt "Return the" --top-p 0.9 --seed 7 --json

        unmask sample runs/demo/mdlm --length 96 --steps 24 --png canvas.png
    """
    from unmask.generation import load, token_rule

    rule = token_rule(temperature, top_k, top_p)
    lm = load(checkpoint, device=device, dtype=dtype)
    with room_for(batch_size), progress("sampling", n, quiet=as_json) as advance:
        options: dict[str, Any] = {"prompt": prompt, "length": length, "steps": steps, "seed": seed, "rule": rule}
        done = lm.sample(n, **options, batch_size=batch_size, progress=advance)
    if png is not None:
        _draw(lm, png, **options)
    if as_json:
        print_json(
            {"sampler": lm.sampler(steps).model_dump(), "rule": rule.model_dump(), "texts": [asdict(x) for x in done]}
        )
        return
    for one in done:
        console.rule(f"seed {one.seed}, {one.calls} network calls", style="dim")
        typer.echo(one.text)
    if png is not None:
        console.print(f"Picture: {png}", style="dim")


def _draw(lm: Any, png: Path, **options: Any) -> None:
    from unmask.pictures import draw_frames

    draw_frames(list(lm.stream(**options)), lm.tokenizer, png)
