"""`unmask sample`: new texts from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import watching
from unmask.cli.common import (
    BatchSize,
    Checkpoint,
    Json,
    Seed,
    Steps,
    Where,
    console,
    errors,
    print_json,
    progress,
    room_for,
)
from unmask.cli.options import Constraining, HybridDrawing, Ordering, grouped, told
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM
    from unmask.text_processor import Frame, Generation


@dataclass(frozen=True)
class Opening:
    """The canvas that is written on."""

    prompt: Annotated[str, typer.Option(help="The text to go on from; [MASK] blanks in it are written too.")] = ""
    suffix: Annotated[str, typer.Option(help="The text to end with; it may have blanks as well.")] = ""
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the whole canvas, prompt and suffix included; up to a million.")
    ] = None
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="What is longer than the model is written in windows, each so many tokens behind the one before; half "
            "of the model's length by default.",
        ),
    ] = None


@dataclass(frozen=True)
class Showing:
    """How people see the text come about."""

    watch: Annotated[bool, typer.Option("--watch", help="See the canvas unmask on the terminal.")] = False
    html: Annotated[Path | None, typer.Option(help="Write a page that replays the first text, call by call.")] = None
    gif: Annotated[Path | None, typer.Option(help="Draw the first text being unmasked, as an animation.")] = None
    png: Annotated[Path | None, typer.Option(help="Draw several moments of it side by side.")] = None

    def pictures(self, as_json: bool) -> list[Path]:
        """The files to write; what cannot be shown is refused now."""
        from unmask.plots.replay import check_pictures

        if self.watch and as_json:
            raise UnmaskError("--watch is for people and --json for machines; give one of them.")
        return check_pictures(html=self.html, gif=self.gif, png=self.png)


Guidance = Annotated[
    float, typer.Option(min=0.0, help="How much more than by itself the model holds to the prompt; 0: no more.")
]


@grouped
def sample(
    checkpoint: Checkpoint = None,
    *,
    n: Annotated[int, typer.Option("-n", min=1, help="How many texts.")] = 1,
    opening: Opening,
    steps: Steps = None,
    seed: Seed = 0,
    drawing: HybridDrawing,
    constraining: Constraining,
    guidance: Guidance = 0.0,
    ordering: Ordering,
    batch_size: BatchSize = None,
    showing: Showing,
    where: Where,
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
    pictures = showing.pictures(as_json)
    rule, wish, way = drawing.rule(), constraining.wish(), ordering.way()
    seeds = _seeds(seed, n)
    lm = where.load(checkpoint)
    options: dict[str, Any] = {**asdict(opening), "steps": steps, "rule": rule, "guidance": guidance, **wish, **way}
    if showing.watch:
        _draw(_watch_all(lm, options, seeds), pictures, seed)
        return
    with room_for(batch_size, constraining.particles), progress("sampling", n, quiet=as_json) as advance:
        done, frames = _write(lm, seeds, bool(pictures), options, batch_size=batch_size, progress=advance)
    if as_json:
        how = {"sampler": lm.sampler(steps, **way).model_dump(), "rule": rule.model_dump(), "guidance": guidance}
        print_json({**how, **told(wish), "texts": [asdict(x) for x in done]})
    else:
        _print(done)
    _draw(frames, pictures, seed)


def _seeds(first: int, count: int) -> range:
    """Those of some texts, as far as there are so many."""
    from unmask.generation_config import check_seeds

    check_seeds(first, count)
    return range(first, first + count)


def _write(
    lm: MaskedDiffusionLM, seeds: range, shown: bool, options: dict[str, Any], **how: Any
) -> tuple[list[Generation], list[Frame]]:
    """A text for each seed; where it is to be shown, the first one's frames, of the walk that wrote it."""
    from unmask.pipeline import followed

    frames = list(followed(lm.stream(**options, seed=seeds[0]), 1, how["progress"])) if shown else []
    done = [frame.finished(seeds[0]) for frame in frames[-1:]]
    rest = seeds[len(done) :]
    return done + (lm.sample(len(rest), seed=rest[0], **options, **how) if rest else []), frames


def _print(texts: list[Generation]) -> None:
    for text in texts:
        console.rule(f"seed {text.seed}, {text.calls} network calls", style="dim")
        typer.echo(text.text)


def _watch_all(lm: MaskedDiffusionLM, options: dict[str, Any], seeds: range) -> list[Frame]:
    """Show one text after the other; the frames of the first are for its pictures."""
    with room_for(1):
        first, *_ = [_watch(lm.stream(**options, seed=seed), seed) for seed in seeds]
    return first


def _watch(frames: Iterator[Frame], seed: int) -> list[Frame]:
    if console.is_terminal:
        console.rule(f"seed {seed}", style="dim")
    return watching.show(frames)


def _draw(frames: list[Frame], pictures: list[Path], seed: int) -> None:
    from unmask.plots.replay import write_pictures

    if not pictures:
        return
    last = frames[-1]
    write_pictures(
        frames, pictures, caption=f"Seed {seed}, {last.calls} network calls, a canvas of {len(last.ids)} tokens."
    )
    for path in pictures:
        errors.print(f"Picture: {path}", style="dim", highlight=False, soft_wrap=True)
