"""`unmask plot`: learning curves, and the order in which positions are unmasked."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from unmask.cli import common

app = typer.Typer(
    no_args_is_help=True,
    help="Plot learning curves (unmask plot run DIR) or the order of unmasking (unmask plot order CKPT).",
)


@app.command("run")
def run(
    folders: Annotated[list[Path], typer.Argument(help="Run folders written by 'unmask train'.", metavar="DIR")],
    out: Annotated[
        Path | None,
        typer.Option(help="A .png, .svg or .pdf. Default: DIR/curves.png, or ./curves.png for several runs."),
    ] = None,
    x: Annotated[Literal["steps", "tokens", "seconds"], typer.Option("--x", help="Unit of the x axis.")] = "steps",
    as_json: common.Json = False,
) -> None:
    """Plot the loss, validation bound with errors, gradient norm and speed of one or more runs.

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
    report = {"picture": str(picture), "runs": [one.summary() for one in runs]}
    common.print_result(report, f"Wrote {picture}", as_json)


@app.command("order")
@common.option_groups
def order(
    checkpoint: common.Checkpoint = None,
    *,
    orders: common.Orders = None,
    samplers: common.Samplers = None,
    prompt: Annotated[str, typer.Option(help="Text to continue; [MASK] blanks in it are filled.")] = "",
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of the canvas, prompt included.")] = None,
    steps: common.Steps = None,
    seed: common.Seed = 0,
    tokens: common.TokenOptions,
    out: Annotated[Path, typer.Option(help="A .png, .svg or .pdf.")] = Path("order.png"),
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Plot which position is unmasked in which network call, coloured by confidence; rings are remasked later.

    Each order and sampler has a panel. Adaptive orders ignore `--steps`.

    Examples:

        unmask plot order --steps 32 --order confidence --order left_to_right --order entropy_bounded

        unmask plot order runs/mine --prompt "Once" --steps 64 --sampler "name: remdm, eta: 0.1" --out remdm.png
    """
    from unmask.plots.order import UnmaskingOrder, draw_orders
    from unmask.plots.style import check_picture

    check_picture(out)
    rule = tokens.token_sampler()
    specs: list[dict[str, Any]] = [{"order": one} for one in orders or []]
    specs += [{"sampler": common.parse_sampler(one)} for one in samplers or []]
    lm = model.load(checkpoint)
    chosen: list[Any] = [
        lm.sampler(None if lm.causal or lm.sampler(**spec).adaptive else steps, **spec) for spec in specs or [{}]
    ]
    panels = []
    for sampler in chosen:
        words = [getattr(sampler, "order", sampler.name), getattr(sampler, "strategy", "")]
        title = " ".join(words).strip().replace("_", " ")
        frames = lm.stream(prompt, length=length, seed=seed, rule=rule, sampler=None if lm.causal else sampler)
        panels.append(UnmaskingOrder.of(title, list(frames)))
    draw_orders(panels, out)
    shown = [{"sampler": one.model_dump(), **asdict(panel)} for one, panel in zip(chosen, panels, strict=True)]
    common.print_result({"picture": str(out), "walks": shown}, f"Wrote {out}", as_json)
