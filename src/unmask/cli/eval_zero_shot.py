"""`unmask eval zero-shot`: the perplexity of checkpoints on data sets that they were not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unmask.cli import common

if TYPE_CHECKING:
    from unmask.evaluation.zero_shot import ZeroShotResult

UNITS = {"perplexity": "perplexity per token", "bits_per_byte": "bits per byte"}


@common.option_groups
def zero_shot(
    checkpoints: Annotated[
        list[str], common.checkpoints_argument("Checkpoints to compare, masked and autoregressive.")
    ],
    *,
    on: Annotated[
        str,
        typer.Option(
            help="Protocols, separated by commas ('unmask list protocol'); name:validation is the validation part "
            "instead of the test part."
        ),
    ],
    documents: Annotated[
        int | None, typer.Option(min=2, help="Use this many evenly spaced documents of each data set.")
    ] = None,
    seed: common.BoundSeed = 0,
    batch_size: common.BatchSize = None,
    out: common.Out = None,
    model: common.ModelOptions,
    as_json: common.Json = False,
) -> None:
    """Perplexity per token and bits per byte on other data sets, both with errors: Table 3 of the paper.

    Each data set is read by its protocol, from the folder UNMASK_DATA or from the Hugging Face hub, and encoded by each
    checkpoint's own tokenizer and length policy. Perplexities compare models with the same tokenizer, bits per byte
    compare all. Exit with code 1 if two estimators of a bound disagree.

    Examples:

        unmask eval zero-shot runs/mdlm runs/ar --on ptb,wikitext-2,lambada,ag_news

        unmask eval zero-shot stories stories-ar --on wiki:validation --documents 20 --out zero-shot.json
    """
    from unmask.evaluation.zero_shot import evaluate_zero_shot, parse_parts
    from unmask.io import unique_names

    parts = parse_parts(on)
    names = unique_names([Path(path).name for path in checkpoints], checkpoints)
    common.check_outputs(out, None)
    results: list[ZeroShotResult] = []
    for name, path in zip(names, checkpoints, strict=True):
        lm = model.load(path)
        for part in parts:
            with (
                common.out_of_memory_advice(batch_size),
                common.progress(f"{name} on {part.name}", None, quiet=as_json) as advance,
            ):
                results.append(evaluate_zero_shot(lm, name, part, documents, seed, batch_size, advance))
    report = {"results": [result.as_dict() for result in results]}
    common.print_report(report, lambda: _print_tables(names, results), out, as_json)
    disagreements = [
        f"{one.checkpoint} on {one.part.name}: {problem}" for one in results if (problem := one.evaluation.disagreement)
    ]
    if disagreements:
        common.error_console.print(f"unmask: {' '.join(disagreements)}", style="bold red", soft_wrap=True)
        raise typer.Exit(1)


def _print_tables(names: list[str], results: list[ZeroShotResult]) -> None:
    from unmask.likelihood import format_with_errors

    for unit, title in UNITS.items():
        rows: dict[str, list[str]] = {}
        for one in results:
            rows.setdefault(one.part.label, []).append(format_with_errors(one.evaluation.headline, unit))
        common.print_table([title, *names], ([label, *figures] for label, figures in rows.items()))
    notes = [f"{one.checkpoint} was trained on {one.part.name}." for one in results if one.trained_on_it]
    common.print_notes([*notes, "± Monte-Carlo error, ± data error (spread over documents)"])
