"""`unmask plot`: pictures of what was measured, and of how a text was unmasked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from unmask.cli.common import Checkpoint, Json, Seed, Steps, Where, console, print_json
from unmask.cli.options import HybridDrawing, grouped, sampler_spec

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM

HELP = "Draw what was measured, or how a text is unmasked: unmask plot run DIR, unmask plot order CKPT."
app = typer.Typer(no_args_is_help=True, help=HELP)


@app.callback(help=HELP)
def plot() -> None:
    """Draw what was measured, or how a text is unmasked."""


@app.command("run")
def run(
    folders: Annotated[list[Path], typer.Argument(help="Folders that 'unmask train' wrote.", metavar="DIR")],
    out: Annotated[
        Path | None, typer.Option(help="A .png, .svg or .pdf; DIR/curves.png, or ./curves.png for several.")
    ] = None,
    x: Annotated[
        Literal["steps", "tokens", "seconds"], typer.Option("--x", help="What the horizontal axis counts.")
    ] = "steps",
    as_json: Json = False,
) -> None:
    """Draw the curves of a run, or of several over one another: loss, validation with its errors, gradients, speed.

    Examples:

        unmask plot run runs/mine

        unmask plot run runs/a runs/b runs/c --x tokens --out compared.svg

        unmask plot run runs/mine --json
    """
    from unmask.plots.curves import draw_runs, read_runs
    from unmask.plots.style import check_picture

    picture = out or (folders[0] if len(folders) == 1 else Path()) / "curves.png"
    if out is not None:
        check_picture(out)
    runs = read_runs(folders)
    draw_runs(runs, picture, x)
    if as_json:
        print_json({"picture": str(picture), "runs": [one.summary() for one in runs]})
    else:
        console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)


@app.command("order")
@grouped
def order(
    checkpoint: Checkpoint = None,
    *,
    orders: Annotated[
        list[str] | None, typer.Option("--order", help="As of 'unmask sample'; repeatable, one panel each.")
    ] = None,
    samplers: Annotated[
        list[str] | None, typer.Option("--sampler", help="As of 'unmask sample'; repeatable, one panel each.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="The text to go on from; blanks in it are written too.")] = "",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of the whole canvas, prompt included.")] = None,
    steps: Steps = None,
    seed: Seed = 0,
    drawing: HybridDrawing,
    out: Annotated[Path, typer.Option(help="A .png, .svg or .pdf.")] = Path("order.png"),
    where: Where,
    as_json: Json = False,
) -> None:
    """Draw which position was written in which network call, coloured by confidence; rings were masked again.

    `--steps` is for those that take it; orders that adapt go their own way.

    Examples:

        unmask plot order --steps 32 --order confidence --order left_to_right --order entropy_bounded

        unmask plot order runs/mine --prompt "Once" --steps 64 --sampler "name: remdm, eta: 0.1" --out remdm.png
    """
    from unmask.plots.order import UnmaskingOrder, draw_orders
    from unmask.plots.style import check_picture

    check_picture(out)
    rule = drawing.rule()
    ways: list[dict[str, Any]] = [{"order": one} for one in orders or []]
    ways += [{"sampler": sampler_spec(one)} for one in samplers or []]
    lm = where.load(checkpoint)
    chosen = [_sampler(lm, steps, way) for way in ways or [{}]]
    drawn = []
    for sampler in chosen:
        way = {} if lm.causal else {"sampler": sampler}
        frames = list(lm.stream(prompt, length=length, seed=seed, rule=rule, **way))
        drawn.append(UnmaskingOrder.of(_name(sampler), frames))
    draw_orders(drawn, out)
    if as_json:
        shown = [{"sampler": one.model_dump(), **asdict(order)} for one, order in zip(chosen, drawn, strict=True)]
        print_json({"picture": str(out), "walks": shown})
    else:
        console.print(f"Picture: {out}", highlight=False, soft_wrap=True)


def _sampler(lm: MaskedDiffusionLM, steps: int | None, way: dict[str, Any]) -> Any:
    """The sampler of a panel, in `steps` where it takes them."""
    return lm.sampler(None if lm.causal or lm.sampler(**way).adaptive else steps, **way)


def _name(sampler: Any) -> str:
    """What a panel is called: the order, or the sampler and its strategy."""
    words = [getattr(sampler, "order", sampler.name), getattr(sampler, "strategy", "")]
    return " ".join(words).strip().replace("_", " ")
