"""`unmask eval generation`: what checkpoints write, as another language model judges it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from unmask.cli.common import console
from unmask.evaluation.statistics import format_estimate

if TYPE_CHECKING:
    from unmask.evaluation.generation import GenerationEvaluation, GenerationResult
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.checkpoint import DEFAULT_MODEL
from unmask.cli.common import BatchSize, Json, Out, Seed, Where, check_outputs, deliver, errors, progress, room_for
from unmask.cli.options import HeldOut, HybridDrawing, Orders, SamplerSpecs, grouped, sampler_spec
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.evaluation.generation import CheckpointPlan, GenerationEvaluation, Texts
    from unmask.likelihood import Progress
    from unmask.pipeline import MaskedDiffusionLM


TABLES = (
    {"perplexity": "perplexity", "entropy": "entropy", "repetition": "repetition"},
    {"distinct_1": "distinct-1", "distinct_2": "distinct-2", "distinct_3": "distinct-3"},
    {"tokens": "tokens", "characters": "characters"},
    {"calls": "calls", "seconds": "seconds"},
)
"""Quality, diversity, length and cost, apart, so that a row with its intervals fits 80 characters."""


def show_frontier(evaluation: GenerationEvaluation) -> None:
    """The tables, and what the figures are."""
    for columns in TABLES:
        console.print(_table(evaluation.rows, columns))
    texts = ", ".join(dict.fromkeys(str(row.texts) for row in evaluation.rows))
    _say(f"judge {evaluation.judge.name}, {texts} texts a row; (low–high): 95% bootstrap intervals over texts.")
    _say("Per judge token, no end token counted; entropy in nats; calls, seconds, lengths a text; - does not apply.")
    for row in evaluation.rows:
        if row.empty:
            _say(f"{row_name(row)}: {row.empty} of {row.texts} texts are empty.")


def row_name(row: GenerationResult) -> str:
    """What stands before a row, such as ``mdlm, 64 steps``."""
    return row.name if row.steps is None else f"{row.name}, {row.steps} steps"


def _table(rows: list[GenerationResult], columns: dict[str, str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for words in columns.values():
        table.add_column(words, justify="right")
    for row in rows:
        table.add_row(row_name(row), *(format_estimate(row.metrics[name]) for name in columns))
    return table


def _say(words: str) -> None:
    console.print(words, style="dim", highlight=False, soft_wrap=True, markup=False)


JudgeName = Annotated[
    str, typer.Option(help="A causal language model: its folder (one of our AR checkpoints too) or hub name.")
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Argument(
        help="Folders written by 'unmask train' or 'unmask convert', or models that ship; without any, and without "
        "--texts, the shipped model 'stories'.",
        metavar="CKPT",
    ),
]
StepCounts = Annotated[
    list[str] | None,
    typer.Option(
        help="At most this many network calls; repeatable. 'none', and without it: one token a call, the exact law, "
        "which is also all that an AR checkpoint does."
    ),
]
TextFiles = Annotated[
    list[Path] | None,
    typer.Option(help="Also judge these texts: a .json list of strings, or a text a line; repeatable."),
]


@grouped
def generation(
    judge: JudgeName,
    checkpoints: Checkpoints = None,
    *,
    steps: StepCounts = None,
    n: Annotated[int, typer.Option("-n", min=1, help="How many texts; of held-out data at most as many.")] = 256,
    texts: TextFiles = None,
    held_out: HeldOut,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of a canvas; the model's own without it.")] = None,
    seed: Seed = 0,
    drawing: HybridDrawing,
    orders: Orders = None,
    samplers: SamplerSpecs = None,
    batch_size: BatchSize = None,
    out: Out = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the frontier: a .png, .svg or .pdf.")] = None,
    where: Where,
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
    from unmask.evaluation.generation import GenerationEvaluation, GenerationSettings, make_plan, parse_steps
    from unmask.evaluation.judge import open_judge
    from unmask.plots.frontier import draw_frontier

    settings = GenerationSettings(n, seed, drawing.rule(), length, batch_size)
    named = checkpoints or ([] if texts else [DEFAULT_MODEL])
    strategies: dict[str, dict[str, Any]] = {order: {"order": order} for order in orders or []}
    strategies |= {text.removeprefix("name: "): {"sampler": sampler_spec(text)} for text in samplers or []}
    plan = make_plan(named, parse_steps(steps or ["none"]), length, strategies)
    given = _read_given(texts or [])
    check_outputs(out, plot)
    evaluation = GenerationEvaluation(open_judge(judge, where.device, where.dtype), settings)
    work = n * (1 + sum(one.work for one in plan)) + sum(len(one.texts) for one in given.values())
    with room_for(batch_size), progress("judging", work, quiet=as_json) as advance:
        _add_models(evaluation, plan, where, held_out, advance)
        _add_given(evaluation, given, advance)
    deliver(evaluation.as_dict(), lambda: show_frontier(evaluation), out, as_json)
    if plot is not None:
        draw_frontier(evaluation.rows, plot)


def _add_models(
    evaluation: GenerationEvaluation, plan: Sequence[CheckpointPlan], where: Where, held_out: HeldOut, advance: Progress
) -> None:
    """What the checkpoints write, behind held-out data in the form of the first one's texts."""
    for number, planned in enumerate(plan):
        lm = where.load(planned.path)
        if number == 0:
            _add_data(evaluation, lm, held_out, advance)
        evaluation.add_model(planned, lm, advance)
    if not plan and held_out.data:
        _add_data(evaluation, None, held_out, advance)


def _add_data(
    evaluation: GenerationEvaluation, lm: MaskedDiffusionLM | None, held_out: HeldOut, advance: Progress
) -> None:
    """Held-out texts; where none are named and the checkpoint's own are gone, a word on it."""
    from unmask.evaluation.generation import reference_texts

    settings = evaluation.settings
    try:
        texts = reference_texts(lm, settings.n, held_out.data, held_out.separator, held_out.field, settings.length)
    except UnmaskError as error:
        if held_out.data:
            raise
        errors.print(f"No row of held-out data: {error}", highlight=False, soft_wrap=True, markup=False)
    else:
        evaluation.add_texts("held-out data", "data", texts, advance)


def _read_given(files: Sequence[Path]) -> dict[str, Texts]:
    """The texts of files by their names; those of one name are told apart by the path before it."""
    from unmask.evaluation.generation import read_texts
    from unmask.io import unique_names

    titles = unique_names([path.name for path in files], [str(path) for path in files])
    return dict(zip(titles, map(read_texts, files), strict=True))


def _add_given(evaluation: GenerationEvaluation, given: Mapping[str, Texts], advance: Progress) -> None:
    for name, texts in given.items():
        evaluation.add_texts(name, "texts", texts, advance)
