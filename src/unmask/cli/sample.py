"""`unmask sample`: new texts from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import watching
from unmask.cli.common import (
    BatchSize,
    Checkpoint,
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
    console,
    errors,
    print_json,
    progress,
    room_for,
)
from unmask.cli.constraining import Characters, Match, Particles, With, Without, constraints, told
from unmask.cli.ordering import Order, SamplerSpec, sampler_spec
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.scribe import Frame


def sample(
    checkpoint: Checkpoint = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many texts.")] = 1,
    prompt: Annotated[str, typer.Option(help="The text to go on from.")] = "",
    suffix: Annotated[str, typer.Option(help="The text to end with.")] = "",
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the whole canvas, prompt and suffix included; any number.")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="What is longer than the model is written in windows, each so many tokens behind the one before; half "
            "of the model's length by default.",
        ),
    ] = None,
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
    guidance: Annotated[
        float, typer.Option(min=0.0, help="How much more than by itself the model holds to the prompt; 0: no more.")
    ] = 0.0,
    order: Order = None,
    sampler: SamplerSpec = None,
    batch_size: BatchSize = None,
    watch: Annotated[bool, typer.Option("--watch", help="See the canvas unmask on the terminal.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page that replays the first text, call by call.")] = None,
    gif: Annotated[Path | None, typer.Option(help="Draw the first text being unmasked, as an animation.")] = None,
    png: Annotated[Path | None, typer.Option(help="Draw several moments of it side by side.")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Generate texts, and see how they come about.

    On a terminal `--watch` shows masks as dim blocks and tokens in the colour of their confidence, one text after the
    other; elsewhere it prints the finished texts alone.

    Examples:

        unmask sample --steps 64 --watch

        unmask sample stories-ar --prompt "Once upon a time" --top-p 0.9 --seed 7 --json

        unmask sample runs/mine -n 4 --length 128 --steps 64

        unmask sample --length 24 --match "Once upon a time[a-z ,]+[.]" --particles 8

        unmask sample --length 2048 --stride 128 --steps 64

        unmask sample --prompt "Once upon a time" --suffix " The end." --length 64 --guidance 1.5

        unmask sample --steps 32 --order confidence --greedy-above 0.9

        unmask sample runs/planner --steps 32 --order planner

        unmask sample --steps 128 --sampler "name: remdm, strategy: loop" --top-p 0.9

        unmask sample --length 96 --steps 24 --html replay.html --gif replay.gif --png canvas.png
    """
    from unmask.generation import load, token_rule
    from unmask.pictures.drawing import check_pictures

    if watch and as_json:
        raise UnmaskError("--watch is for people and --json for machines; give one of them.")
    pictures = check_pictures(html=html, gif=gif, png=png)
    rule = token_rule(temperature, top_k, top_p, min_p, greedy_tail, greedy_above)
    constraint = constraints(match, with_words, without, characters)
    way: dict[str, Any] = {"order": order, "sampler": sampler_spec(sampler)}
    lm = load(checkpoint, device=device, dtype=dtype)
    options: dict[str, Any] = {"prompt": prompt, "length": length, "steps": steps, "rule": rule}
    options |= {"suffix": suffix, "stride": stride, "guidance": guidance}
    options |= {"constraint": constraint, "particles": particles, **way}
    if watch:
        with room_for(1):
            first, *_ = [_watch(lm.stream(**options, seed=one), one) for one in range(seed, seed + n)]
        _draw(first, pictures, seed)
        return
    with room_for(batch_size), progress("sampling", n, quiet=as_json) as advance:
        done = lm.sample(n, **options, seed=seed, batch_size=batch_size, progress=advance)
    if pictures:
        _draw(list(lm.stream(**options, seed=seed)), pictures, seed)
    if as_json:
        how = {"sampler": lm.sampler(steps, **way).model_dump(), "rule": rule.model_dump(), "guidance": guidance}
        print_json({**how, **told(constraint, particles), "texts": [asdict(x) for x in done]})
        return
    for text in done:
        console.rule(f"seed {text.seed}, {text.calls} network calls", style="dim")
        typer.echo(text.text)


def _watch(frames: Iterator[Frame], seed: int) -> list[Frame]:
    if console.is_terminal:
        console.rule(f"seed {seed}", style="dim")
    return watching.show(frames)


def _draw(frames: list[Frame], pictures: list[Path], seed: int) -> None:
    from unmask.pictures.drawing import draw

    last = frames[-1]
    draw(frames, pictures, caption=f"Seed {seed}, {last.calls} network calls, a canvas of {len(last.ids)} tokens.")
    for path in pictures:
        errors.print(f"Picture: {path}", style="dim", highlight=False, soft_wrap=True)
