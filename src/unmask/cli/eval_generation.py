"""`unmask eval generation`: the quality of generated texts under another language model."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import common
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.evaluation.generation import GenerationEvaluation
    from unmask.pipeline import MaskedDiffusionLM

COLUMNS = (
    ("perplexity", "entropy", "repetition"),
    ("distinct_1", "distinct_2", "distinct_3"),
    ("self_bleu", "mauve", "broken_words"),
    ("repeated_spans", "unfinished_quotes", "unfinished_end"),
    ("tokens", "characters"),
    ("calls", "seconds"),
)
"""Quality, diversity, failures, length and cost: tables that fit into 80 columns."""

JudgeName = Annotated[
    str, typer.Option(help="Causal language model that scores the texts: a folder, an AR checkpoint or a Hub name.")
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Argument(
        help="Folders written by 'unmask train' or 'unmask convert', or shipped models. Default without --texts: "
        "stories.",
        metavar="CKPT",
        callback=common.check_checkpoints,
    ),
]
TextFiles = Annotated[
    list[Path] | None,
    typer.Option(help="Also score these texts: a .json list of strings, or one text per line; repeatable."),
]
Mauve = Annotated[
    str | None,
    typer.Option(
        help="Also compare with the held-out texts by MAUVE, on features of this causal language model, named like "
        "the judge. Needs the extra 'quality'.",
        metavar="MODEL",
    ),
]


@common.option_groups
def generation(
    judge: JudgeName,
    checkpoints: Checkpoints = None,
    *,
    steps: common.StepCounts = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Texts per row; at most this many held-out ones.")] = 256,
    texts: TextFiles = None,
    mauve: Mauve = None,
    held_out: common.HeldOutOptions,
    length: Annotated[int | None, typer.Option(min=1, help="Tokens of a text. Default: the model's length.")] = None,
    seed: common.Seed = 0,
    tokens: common.TokenOptions,
    orders: common.Orders = None,
    samplers: common.Samplers = None,
    batch_size: common.BatchSize = None,
    out: common.Out = None,
    plot: Annotated[Path | None, typer.Option(help="Plot perplexity against entropy: a .png, .svg or .pdf.")] = None,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Generative perplexity with entropy, repetition, distinct n-grams, self-BLEU, failures, length, calls and seconds.

    The judge scores every token after its begin token, and no end token. Each figure has a 95% bootstrap interval over
    texts. Low perplexity with low entropy is not quality: compare both with held-out data.

    Examples:

        unmask eval generation --judge gpt2-large --steps 16 --steps 64 --steps none

        unmask eval generation stories stories-ar --judge judges/llama --steps 64 --plot frontier.png

        unmask eval generation stories stories-ar --judge judges/llama --steps 64 --order uniform --order confidence

        unmask eval generation runs/planner --judge judges/llama --steps 16 --steps 64 --order planner

        unmask eval generation runs/mine --judge gpt2 -n 64 --top-p 0.9 --data book.txt --out results.json --json

        unmask eval generation --judge stories-ar --texts samples.json --data book.txt

        unmask eval generation runs/mine --judge gpt2-large --mauve gpt2-large -n 5000
    """
    if mauve is not None and find_spec("mauve") is None:
        raise UnmaskError("--mauve needs the package mauve-text; run: pip install 'unmask[quality]'.")
    from unmask.checkpoint import DEFAULT_MODEL
    from unmask.evaluation.generation import GenerationEvaluation, GenerationSettings, make_plan, parse_steps
    from unmask.evaluation.judge import open_judge
    from unmask.plots.evaluation import draw_frontier

    settings = GenerationSettings(n, seed, tokens.token_sampler(), length, batch_size)
    strategies: dict[str, dict[str, Any]] = {order: {"order": order} for order in orders or []}
    strategies |= {text.removeprefix("name: "): {"sampler": common.parse_sampler(text)} for text in samplers or []}
    paths = checkpoints or ([] if texts else [DEFAULT_MODEL])
    plan = make_plan(paths, parse_steps(steps or ["none"]), length, strategies)
    given = _read_files(texts or [])
    common.check_outputs(out, plot)
    scorer = open_judge(judge, model.device, model.dtype)
    features = scorer if mauve in (judge, None) else open_judge(mauve, model.device, model.dtype)
    evaluation = GenerationEvaluation(scorer, settings, None if mauve is None else features)
    work = n * (1 + sum(one.work for one in plan)) + sum(len(one.texts) for one in given.values())
    with common.out_of_memory_advice(batch_size), common.progress("scoring", work, as_json, even=False) as advance:
        for number, planned in enumerate(plan):
            lm = model.load(planned.path)
            if number == 0:
                _add_held_out(evaluation, lm, held_out, advance)
            evaluation.add_model(planned, lm, advance)
        if not plan and held_out.data:
            _add_held_out(evaluation, None, held_out, advance)
        for name, one in given.items():
            evaluation.add_texts(name, "texts", one, advance)
    common.print_report(evaluation.as_dict(), lambda: _print_tables(evaluation), out, as_json)
    if plot is not None:
        draw_frontier(evaluation.rows, plot)


def _read_files(files: list[Path]) -> dict[str, Any]:
    """The texts of each file under a name of its own."""
    from unmask.evaluation.generation import read_texts
    from unmask.io import unique_names

    names = unique_names([path.name for path in files], [str(path) for path in files])
    return dict(zip(names, map(read_texts, files), strict=True))


def _add_held_out(
    evaluation: GenerationEvaluation,
    lm: MaskedDiffusionLM | None,
    held_out: common.HeldOutOptions,
    advance: Callable[[float], None],
) -> None:
    """Add a row of held-out texts, or say why there is none if the checkpoint's own data are not available."""
    from unmask.evaluation.generation import reference_texts

    settings = evaluation.settings
    try:
        texts = reference_texts(lm, settings.n, held_out.data, held_out.separator, held_out.field, settings.length)
    except UnmaskError as error:
        if held_out.data or evaluation.mauve_model is not None:
            raise
        common.error_console.print(f"No held-out row: {error}", soft_wrap=True, markup=False)
    else:
        evaluation.add_texts("held-out data", "data", texts, advance)


def _print_tables(evaluation: GenerationEvaluation) -> None:
    from unmask.evaluation.statistics import format_estimate

    names = [row.name if row.steps is None else f"{row.name}, {row.steps} steps" for row in evaluation.rows]
    left_out = () if evaluation.mauve_model is not None else ("mauve",)
    for columns in COLUMNS:
        shown = [column for column in columns if column not in left_out]
        rows = [
            (name, *(format_estimate(row.metrics[column]) for column in shown))
            for name, row in zip(names, evaluation.rows, strict=True)
        ]
        common.print_table(["", *(column.replace("_", "-") for column in shown)], rows)
    counts = ", ".join(dict.fromkeys(str(row.texts) for row in evaluation.rows))
    notes = [
        f"Judge {evaluation.judge.name}, {counts} texts per row; (low–high) is a 95% bootstrap interval over texts.",
        "Perplexity per judge token without the end token, entropy in nats; lengths, calls and seconds per text.",
        "Broken words: share of words that no (other) held-out text has. The failures after it: shares of texts.",
    ]
    if find_spec("sacrebleu") is None:
        notes.append("Self-BLEU needs the package sacrebleu; run: pip install 'unmask[quality]'.")
    for name, row in zip(names, evaluation.rows, strict=True):
        if row.empty:
            notes.append(f"{name}: {row.empty} of {row.texts} texts are empty.")
    common.print_notes(notes)
