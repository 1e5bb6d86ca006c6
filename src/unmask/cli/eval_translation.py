"""`unmask eval translation`: BLEU and chrF of translations by the number of network calls."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import common
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.evaluation.translation import TranslationResult


@common.option_groups
def translation(
    checkpoints: Annotated[
        list[str], common.checkpoints_argument("Runs of 'unmask train translation' and 'translation-ar'.")
    ],
    *,
    on: Annotated[
        str | None,
        typer.Option(help="Protocol whose test part is translated, such as multi30k.", metavar="PROTOCOL"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead: two files whose lines correspond (--data a.de --data a.en), or one file of pairs (.tsv, "
            ".jsonl). Default: the test or validation pairs of the first checkpoint."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Translate this many evenly spaced sentences.")] = None,
    steps: common.StepCounts = None,
    order: Annotated[
        str, typer.Option(help="Order of unmasking: confidence, margin, entropy, left_to_right or uniform.")
    ] = "confidence",
    temperature: Annotated[float, typer.Option(min=0.0, help="0 writes the most likely tokens.")] = 0.0,
    seed: common.Seed = 0,
    batch_size: common.BatchSize = None,
    out: common.Out = None,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """BLEU and chrF by sacrebleu with 95% bootstrap intervals, for every number of steps; needs the extra 'quality'.

    The source is frozen, the rest of the row is masked, and a translation ends at the first EOS: its length is chosen
    by the model. An autoregressive model has one row. Default steps: 1, 4, 16 and none (one token per call).

    Examples:

        unmask eval translation runs/translation runs/translation-ar --on multi30k

        unmask eval translation runs/translation --data a.de --data a.en --steps 4 --steps 16 --out results.json
    """
    if find_spec("sacrebleu") is None:
        raise UnmaskError("'unmask eval translation' needs sacrebleu; run: pip install 'unmask[quality]'.")
    if on and data:
        raise UnmaskError("--on and --data both name the sentences; give one of them.")
    from unmask.evaluation.generation import parse_steps
    from unmask.evaluation.statistics import LEVEL, RESAMPLES
    from unmask.evaluation.translation import (
        DEFAULT_STEPS,
        TranslationResult,
        check_translates,
        measure,
        read_pairs,
        translate,
    )
    from unmask.io import unique_names

    counts = parse_steps(steps or DEFAULT_STEPS)
    common.check_outputs(out, None)
    models = [model.load(path) for path in checkpoints]
    for lm in models:
        check_translates(lm)
    pairs = read_pairs(models[0], on, data, count)
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    names = unique_names([Path(path).resolve().name for path in checkpoints], checkpoints)
    results = []
    work = len(pairs) * sum(1 if lm.causal else len(counts) for lm in models)
    even = work == len(pairs)  # one number of steps
    with common.out_of_memory_advice(batch_size), common.progress("translating", work, as_json, even) as advance:
        for name, lm in zip(names, models, strict=True):
            for number in [None] if lm.causal else counts:
                done = translate(lm, sources, number, order, temperature, seed, batch_size, advance)
                metrics = measure(done, references)
                results.append(TranslationResult(name, lm.causal, number, len(pairs), done.truncated, metrics))
    report = {
        "pairs": len(pairs),
        "order": order,
        "temperature": temperature,
        "seed": seed,
        "interval": {"level": LEVEL, "resamples": RESAMPLES},
        "rows": [one.as_dict() for one in results],
    }
    common.print_report(report, lambda: _print_table(results), out, as_json)


def _print_table(results: list[TranslationResult]) -> None:
    from unmask.evaluation.statistics import format_estimate

    rows = [
        (
            row.checkpoint,
            "-" if row.steps is None else str(row.steps),
            format_estimate(row.metrics["bleu"]),
            format_estimate(row.metrics["chrf"]),
            f"{row.metrics['length_ratio'].value:.2f}",
            f"{row.metrics['calls'].value:.1f}",
            f"{1000 * row.metrics['seconds'].value:.1f}",
        )
        for row in results
    ]
    common.print_table(("", "steps", "BLEU", "chrF", "length", "calls", "ms"), rows)
    notes = [
        f"{results[0].pairs} sentences; (low–high) is a 95% bootstrap interval over them. Length: words written over "
        "words of the reference; calls and milliseconds per sentence."
    ]
    notes += [f"{row.checkpoint}: {row.truncated} sources were cut." for row in results if row.truncated]
    common.print_notes(dict.fromkeys(notes))
