"""`unmask eval generation`: what checkpoints write, as another language model judges it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask import shelf
from unmask.cli.common import (
    BatchSize,
    Device,
    Dtype,
    GreedyAbove,
    GreedyTail,
    Json,
    MinP,
    Seed,
    Temperature,
    TopK,
    TopP,
    errors,
    print_json,
    progress,
    room_for,
)
from unmask.cli.ordering import Orders, SamplerSpecs, sampler_spec
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.evaluation.generation.frontier import Frontier
    from unmask.evaluation.generation.plan import Way
    from unmask.evaluation.generation.texts import Draw, Texts
    from unmask.generation import MaskedDiffusionLM
    from unmask.tally import Progress


def generation(
    judge: Annotated[
        str, typer.Option(help="A causal language model: its folder (one of our AR checkpoints too) or hub name.")
    ],
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders written by 'unmask train' or 'unmask convert', or models that ship; without any, and without "
            "--texts, the shipped model 'stories'.",
            metavar="CKPT",
        ),
    ] = None,
    steps: Annotated[
        list[str] | None,
        typer.Option(
            help="At most this many network calls; repeatable. 'none', and without it: one token a call, the exact "
            "law, which is also all that an AR checkpoint does."
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many texts; of held-out data at most as many.")] = 256,
    texts: Annotated[
        list[Path] | None,
        typer.Option(help="Also judge these texts: a .json list of strings, or a text a line; repeatable."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Held-out text, of any kind that 'unmask train' reads; without it the validation split of the "
            "(first) checkpoint's training data."
        ),
    ] = None,
    separator: Annotated[
        str | None, typer.Option(help="Line that separates documents in --data; or line, paragraph.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="Field of the records in --data that holds the text.")] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of a canvas; the model's own without it.")] = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    greedy_tail: GreedyTail = None,
    greedy_above: GreedyAbove = None,
    orders: Orders = None,
    samplers: SamplerSpecs = None,
    batch_size: BatchSize = None,
    out: Annotated[Path | None, typer.Option(help="Write what --json prints into this file as well.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the frontier: a .png, .svg or .pdf.")] = None,
    device: Device = None,
    dtype: Dtype = "auto",
    as_json: Json = False,
) -> None:
    """Judge perplexity, always beside entropy, repetition, distinct n-grams, length, calls and seconds.

    The judge counts every token of a text behind its begin token, and no end token. Each figure has a 95% bootstrap
    interval over texts. Low perplexity with low entropy is no good text: look at both, beside held-out data.

    Examples:

        unmask eval generation --judge gpt2-large --steps 16 --steps 64 --steps none

        unmask eval generation stories stories-ar --judge judges/llama --steps 64 --plot frontier.png

        unmask eval generation stories stories-ar --judge judges/llama --steps 64 --order uniform --order confidence

        unmask eval generation runs/planner --judge judges/llama --steps 16 --steps 64 --order planner

        unmask eval generation runs/mine --judge gpt2 -n 64 --top-p 0.9 --data book.txt --out results.json --json

        unmask eval generation --judge stories-ar --texts samples.json --data book.txt
    """
    from unmask.cli.generation_tables import show_frontier
    from unmask.evaluation.generation.frontier import Frontier
    from unmask.evaluation.generation.judge import open_judge
    from unmask.evaluation.generation.plan import make_plan, parse_steps
    from unmask.evaluation.generation.texts import Draw, read_texts
    from unmask.generation import load, token_rule

    rule = token_rule(temperature, top_k, top_p, min_p, greedy_tail, greedy_above)
    draw = Draw(n, seed, rule, length, batch_size)
    named = checkpoints or ([] if texts else [shelf.DEFAULT])
    ways = _ways(orders or [], samplers or [])
    plan = make_plan(named, parse_steps(steps or ["none"]), length, ways)
    given = {path.name: read_texts(path) for path in texts or []}
    check_outputs(out, plot)
    frontier = Frontier(open_judge(judge, device, dtype), draw)
    held_out = partial(_held_out, draw=draw, data=data, separator=separator, field=field)
    work = n * (1 + sum(part.work for part in plan)) + sum(len(one.texts) for one in given.values())
    with room_for(batch_size), progress("judging", work, quiet=as_json) as advance:
        for number, part in enumerate(plan):
            lm = load(part.path, device=device, dtype=dtype)
            if number == 0:
                _add_data(frontier, held_out(lm), advance)
            frontier.add_model(part, lm, advance)
        if not plan and data:
            _add_data(frontier, held_out(None), advance)
        for name, one in given.items():
            frontier.add_texts(name, "texts", one, advance)
    if as_json:
        print_json(frontier.as_dict())
    else:
        show_frontier(frontier)
    _write(frontier, out, plot)


def _ways(orders: list[str], samplers: list[str]) -> list[Way]:
    """Every way that is named, or the plain one."""
    from unmask.evaluation.generation.plan import Way

    by_order = [Way(order, name=order) for order in orders]
    return [*by_order, *(Way(sampler=sampler_spec(text), name=text) for text in samplers)] or [Way()]


def check_outputs(out: Path | None, plot: Path | None) -> None:
    """Say before the work begins what would be wrong after it."""
    from unmask.plots.style import check_suffix, drawing

    if out is not None and out.is_dir():
        raise UnmaskError(f"--out '{out}' is a folder; name a file in it.")
    if plot is not None:
        check_suffix(plot)
        with drawing():
            pass


def _held_out(
    lm: MaskedDiffusionLM | None, draw: Draw, data: list[str] | None, separator: str | None, field: str | None
) -> Texts | None:
    """Held-out texts; where none are named and the checkpoint's own are gone, a word on it and None."""
    from unmask.evaluation.generation.texts import held_out_texts

    try:
        return held_out_texts(lm, draw.n, data, separator, field, draw.length)
    except UnmaskError as error:
        if data:
            raise
        errors.print(f"No row of held-out data: {error}", highlight=False, soft_wrap=True, markup=False)
        return None


def _add_data(frontier: Frontier, texts: Texts | None, advance: Progress) -> None:
    if texts is not None:
        frontier.add_texts("held-out data", "data", texts, advance)


def _write(frontier: Frontier, out: Path | None, plot: Path | None) -> None:
    from unmask.evaluation.generation.picture import draw
    from unmask.files import atomic_text

    if out is not None:
        atomic_text(out, json.dumps(frontier.as_dict(), ensure_ascii=False, allow_nan=False, indent=2) + "\n")
    if plot is not None:
        draw(frontier.rows, plot)
