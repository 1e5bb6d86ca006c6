"""`unmask sample`: generate texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import common, terminal
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.text_processor import Frame, Generation

Prompt = Annotated[str, typer.Option(help="Text to continue; [MASK] blanks in it are filled.")]
Suffix = Annotated[str, typer.Option(help="Text to end with; [MASK] blanks in it are filled.")]
Length = Annotated[
    int | None, typer.Option(min=1, help="Tokens of the text, prompt and suffix included; at most 1,000,000.")
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="A canvas longer than a window is generated in windows that advance by this many tokens. "
        "Default: half a window.",
    ),
]
Window = Annotated[int | None, typer.Option(min=1, help="Tokens of a window. Default: the model's length.")]
Guidance = Annotated[float, typer.Option(min=0.0, help="Classifier-free guidance towards the prompt; 0 is off.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show the canvas on the terminal while it is unmasked.")]
Html = Annotated[Path | None, typer.Option(help="Write a web page that replays the first text call by call.")]
Gif = Annotated[Path | None, typer.Option(help="Write an animation of the first text.")]
Png = Annotated[Path | None, typer.Option(help="Write several stages of the first text side by side.")]


@common.option_groups
def sample(
    checkpoint: common.Checkpoint = None,
    *,
    n: Annotated[int, typer.Option("-n", min=1, help="Number of texts.")] = 1,
    prompt: Prompt = "",
    chat: Annotated[
        bool,
        typer.Option("--chat", help="The prompt is a message; --length counts the tokens of the answer (default 128)."),
    ] = False,
    suffix: Suffix = "",
    length: Length = None,
    window: Window = None,
    stride: Stride = None,
    steps: common.Steps = None,
    seed: common.Seed = 0,
    sampling: common.GenerationOptions,
    guidance: Guidance = 0.0,
    batch_size: common.BatchSize = None,
    watch: Watch = False,
    html: Html = None,
    gif: Gif = None,
    png: Png = None,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Generate texts.

    With `--watch` a terminal shows masks as dim blocks and tokens in the colour of their confidence; without a terminal
    only the finished texts are printed.

    Examples:

        unmask sample --steps 64 --watch

        unmask sample stories-ar --prompt "Once upon a time" --top-p 0.9 --seed 7 --json

        unmask sample runs/mine -n 4 --length 128 --steps 64

        unmask sample --length 24 --match "Once upon a time[a-z ,]+[.]" --particles 8

        unmask sample --length 64 --json-schema person.json

        unmask sample --length 2048 --stride 128 --steps 64

        unmask sample --prompt "Once upon a time" --suffix " The end." --length 64 --guidance 1.5

        unmask sample --steps 32 --order confidence --greedy-above 0.9

        unmask sample runs/planner --steps 32 --order planner

        unmask sample --steps 128 --sampler "name: remdm, strategy: loop" --top-p 0.9

        unmask sample models/llada --chat --prompt "Why is the sky blue?" --length 64 --steps 32

        unmask sample --length 96 --steps 24 --html replay.html --gif replay.gif --png canvas.png
    """
    from unmask.pipeline import with_progress
    from unmask.plots.replay import check_pictures
    from unmask.random import check_seeds

    if watch and as_json:
        raise UnmaskError("--watch and --json cannot be combined; choose one of them.")
    pictures = check_pictures(html=html, gif=gif, png=png)
    options = sampling.arguments(steps)
    check_seeds(seed, n)
    if chat and (not prompt or suffix or window or stride or guidance or watch or pictures):
        raise UnmaskError("--chat needs --prompt, and excludes --suffix, --window, --stride, --guidance and pictures.")
    lm = model.load(checkpoint)
    canvas: dict[str, Any] = {"prompt": prompt, "suffix": suffix, "length": length}
    canvas |= {"window": window, "stride": stride, "guidance": guidance}
    if watch:
        with common.out_of_memory_advice(1, sampling.particles):
            shown = [_watch(lm.stream(**canvas, **options, seed=number), number) for number in range(seed, seed + n)]
        _draw(shown[0], pictures, seed)
        return
    with (
        common.out_of_memory_advice(batch_size, sampling.particles),
        common.progress("sampling", n, quiet=as_json) as advance,
    ):
        # the first text, if it is drawn, is not sampled again
        frames = list(with_progress(lm.stream(**canvas, **options, seed=seed), 1, advance)) if pictures else []
        texts = [frames[-1].finished(seed)] if frames else []
        if chat:
            for number in range(seed, seed + n):
                texts.append(lm.chat_details(prompt, max_new_tokens=length or 128, seed=number, **options))
                advance(1)
        elif n > (done := len(texts)):
            texts += lm.sample(n - done, seed=seed + done, batch_size=batch_size, progress=advance, **canvas, **options)
    if as_json:
        common.print_json(common.generation_report(lm, options, texts, whole_texts=True, guidance=guidance))
    else:
        _print(texts)
    _draw(frames, pictures, seed)


def _print(texts: list[Generation]) -> None:
    for text in texts:
        common.console.rule(f"seed {text.seed}, {text.calls} network calls", style="dim")
        print(text.text)


def _watch(stream: Iterable[Frame], seed: int) -> list[Frame]:
    if common.console.is_terminal:
        common.console.rule(f"seed {seed}", style="dim")
    return terminal.watch(stream)


def _draw(frames: list[Frame], pictures: list[Path], seed: int) -> None:
    from unmask.plots.replay import write_pictures

    if not pictures:
        return
    last = frames[-1]
    write_pictures(
        frames, pictures, caption=f"Seed {seed}, {last.calls} network calls, a canvas of {len(last.ids)} tokens."
    )
    for path in pictures:
        common.error_console.print(f"Wrote {path}", style="dim", soft_wrap=True)
