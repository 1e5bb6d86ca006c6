"""`unmask sample`: generate texts."""

from __future__ import annotations

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
    int | None, typer.Option(min=1, help="Tokens of the canvas, prompt and suffix included; at most a million.")
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
    canvas: dict[str, Any] = {"prompt": prompt, "suffix": suffix, "length": length, "window": window, "stride": stride}
    canvas["guidance"] = guidance
    frames: list[Frame] = []
    if watch:
        with common.out_of_memory_advice(1, sampling.particles):
            for number in range(seed, seed + n):
                if common.console.is_terminal:
                    common.console.rule(f"seed {number}", style="dim")
                shown = terminal.watch(lm.stream(**canvas, **options, seed=number))
                frames = frames or shown
        _draw(frames, pictures, seed)
        return
    texts: list[Generation] = []
    with (
        common.out_of_memory_advice(batch_size, sampling.particles),
        common.progress("sampling", n, quiet=as_json) as advance,
    ):
        if pictures:  # of the first text, which is then not sampled again
            frames = list(with_progress(lm.stream(**canvas, **options, seed=seed), 1, advance))
            texts = [frames[-1].finished(seed)]
        if chat:
            for number in range(seed, seed + n):
                texts.append(lm.chat_details(prompt, max_new_tokens=length or 128, seed=number, **options))
                advance(1)
        elif rest := n - len(texts):
            texts += lm.sample(
                rest, seed=seed + len(texts), batch_size=batch_size, progress=advance, **canvas, **options
            )
    if as_json:
        common.print_json(common.generation_report(lm, options, texts, whole_texts=True, guidance=guidance))
    else:
        for text in texts:
            common.console.rule(f"seed {text.seed}, {text.calls} network calls", style="dim")
            print(text.text)
    _draw(frames, pictures, seed)


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
