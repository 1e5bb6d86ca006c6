"""`unmask demo`: train, score, sample and fill in one go, with no download."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli.common import Json, console, errors, print_json, progress

if TYPE_CHECKING:
    from unmask.bounds import Evaluation
    from unmask.evaluation.ngrams import NGramScore


def demo(
    out: Annotated[Path, typer.Option(help="Where the two models are kept; a second run uses them again.")] = Path(
        "runs/demo"
    ),
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again even if the models are there.")] = False,
    as_json: Json = False,
) -> None:
    """Train a small masked diffusion model and its AR twin on Python's own documentation, then use them.

    Examples:

        unmask demo

        unmask demo --fresh --json
    """
    from unmask.evaluation import demo as show
    from unmask.generation import token_rule

    started = time.monotonic()
    models = {twin.name: _trained(twin, fresh, quiet=as_json) for twin in show.twins(out)}
    lm = models["mdlm"]
    ngrams = show.baselines(show.twins(out)[0].recipe, lm)
    judged = {name: _judged(name, model, quiet=as_json) for name, model in models.items()}
    samples = lm.sample(2, length=lm.row_length, steps=64, seed=0, rule=token_rule(top_p=0.9))
    fills = lm.fill_details(show.SENTENCES, rule=token_rule(top_p=0.5))
    result = {
        "baselines": [vars(one) for one in ngrams],
        "bounds": {name: one.as_dict() for name, one in judged.items()},
        "samples": [one.text for one in samples],
        "fills": [one.text for one in fills],
        "seconds": time.monotonic() - started,
    }
    if as_json:
        print_json(result)
    else:
        _show(ngrams, judged, result, list(show.SENTENCES), out)
    if any(one.disagreement for one in judged.values()):
        raise typer.Exit(1)


def _trained(twin: Any, fresh: bool, quiet: bool) -> Any:
    from unmask.evaluation import demo as show
    from unmask.training import Interrupted, Progress, progress_for

    if not quiet:
        console.print(f"[bold]{twin.name}[/bold]: {twin.recipe.training.steps} steps on the standard library's docs")
    watcher = Progress() if quiet else progress_for(errors, verbose=True)
    try:
        result = show.train_twin(twin, fresh, watcher)
    except Interrupted as stop:
        console.print(f"Stopped and saved after step {stop.step}; the same command goes on from there.")
        raise typer.Exit(130) from stop
    if not quiet and result is None:
        console.print(f"  trained earlier, found in {twin.folder}; --fresh trains again", style="dim", highlight=False)
    return show.open_twin(twin)


def _judged(name: str, model: Any, quiet: bool) -> Evaluation:
    from unmask.evaluation import demo as show

    with progress(f"scoring {name}", show.judging_work(model), quiet=quiet) as advance:
        return show.judge(model, advance)


def _show(
    ngrams: list[NGramScore], judged: dict[str, Evaluation], result: dict[str, Any], sentences: list[str], out: Path
) -> None:
    console.print(_table(ngrams, judged))
    console.print("first ± error of the draws, second ± spread over documents", style="dim", highlight=False)
    for index, text in enumerate(result["samples"]):
        console.rule(f"a sample: seed {index}, at most 64 network calls, top-p 0.9", style="dim")
        typer.echo(text)
    console.rule("blanks filled, top-p 0.5", style="dim")
    for before, after in zip(sentences, result["fills"], strict=True):
        typer.echo(f"{before}\n  → {after}")
    console.rule(style="dim")
    console.print(f"Done in {result['seconds']:.0f} s. Next:", highlight=False)
    console.print(f"  unmask sample {out / 'mdlm'} -n 3 --steps 32", highlight=False)
    console.print(f'  unmask fill {out / "mdlm"} "Return a [MASK:3] object."', highlight=False)
    console.print("  unmask train my.txt", highlight=False)


def _table(ngrams: list[NGramScore], judged: dict[str, Evaluation]) -> Any:
    from rich.table import Table

    from unmask.cli.report import figure

    table = Table(box=None, header_style="bold", title="bits per byte on held-out modules", title_justify="left")
    table.add_column("model")
    table.add_column("bits/byte", justify="right")
    for ngram in ngrams:
        error = f" ± {ngram.data_stderr:.3f}" if ngram.data_stderr is not None else ""
        table.add_row(ngram.name, f"{ngram.bits_per_byte:.3f}{error}")
    for name, result in sorted(judged.items()):
        table.add_row(name.upper(), figure(result.headline, "bits_per_byte"))
    return table
