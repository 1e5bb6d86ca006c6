"""`unmask demo`: a tour of the package that needs no network and no files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from unmask.cli import terminal
from unmask.cli.common import Json, console, error_console, format_bound, print_json

NEXT = (
    'unmask sample --prompt "One day, a dragon" --steps 64 --watch',
    "unmask sample --steps 32 --html replay.html",
    'unmask fill "The [MASK] sat on the [MASK:3] and smiled."',
    'unmask score "The cat sat on the mat."',
    "unmask train my.txt",
    "unmask train my.txt --from stories",
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the training run; a finished run is shown again.")] = Path(
        "runs/demo"
    ),
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the run if it exists, and train again.")] = False,
    as_json: Json = False,
) -> None:
    """Generate stories, fill blanks, rewrite and score with a shipped model; then train a model of your own.

    On a terminal the stories unmask as you watch, in the colour of the network's confidence. Nothing is downloaded.
    Ctrl-C during training saves a checkpoint, and the same command resumes.

    Examples:

        unmask demo

        unmask demo --fresh --json
    """
    tour = Tour(quiet=as_json)
    results = tour.results
    with tour.part("Load the shipped model and its autoregressive counterpart", 5):
        # imports torch, which takes longest here
        from unmask.evaluation import demo as content
        from unmask.plots.curves import draw_runs, read_runs

        run = content.prepare_run(out, fresh)
        lm, ar = content.open_pair()

    title = (
        f"Generate {content.STORIES} stories in at most {content.CALLS} network calls, top-p {content.WRITING.top_p}"
    )
    with tour.part(title, 15):
        results["stories"] = []
        for seed in range(content.STORIES):
            frames = lm.stream(steps=content.CALLS, seed=seed, rule=content.WRITING)
            seen = list(frames) if as_json else terminal.show(frames)
            results["stories"].append(seen[-1].text)
            tour.print()

    with tour.part(f"Fill three blanks, top-p {content.FILLING.top_p}", 1):
        results["fills"] = content.fill_blanks(lm)
        for before, after in zip(content.BLANKS, results["fills"], strict=True):
            tour.print(f"{before}\n  → {after}")

    with tour.part("Rewrite the middle of a story", 3):
        results["rewritten"] = content.rewrite(lm)
        tour.print(f"{content.STORY}\n  → {results['rewritten']}")

    with tour.part("Score that story with both models", 8):
        scores = {"masked diffusion": content.score(lm), "autoregressive twin": content.score(ar)}
        tour.print(_score_table(list(scores.values())))
    results["scores"] = {
        name: {"story": one.story.as_dict(), "backwards": one.backwards.as_dict()} for name, one in scores.items()
    }

    with tour.part(f"Train on Python's documentation (unmask train demo --out {out})", 60):
        if run.finished:
            tour.print("already trained; --fresh trains again")
        bound = _train(run, quiet=as_json)
        picture = out / "curves.png"
        draw_runs(read_runs([out]), picture, "steps")
        tour.print(f"{format_bound(bound)}\nCurves: {picture}")
    results["training"] = {"path": str(out), "picture": str(picture), "bound": bound.as_dict()}

    if as_json:
        print_json(results)
        return
    tour.print(f"\nDone in {sum(results['seconds'].values()):.0f} s. Try next", style="bold")
    for line in (*NEXT, f"unmask sample {out} --length 64"):
        tour.print(f"  {line}")


class Tour:
    """Prints the parts of the demo unless `quiet`, and collects their results."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.results: dict[str, Any] = {"seconds": {}}

    def print(self, content: Any = "", **style: Any) -> None:
        """Print a line or a table."""
        if not self.quiet:
            console.print(content, highlight=False, soft_wrap=isinstance(content, str), markup=False, **style)

    @contextmanager
    def part(self, title: str, expected: int) -> Iterator[None]:
        """Time a part that takes about `expected` seconds on two cores."""
        self.print(f"\n{title}", style="bold", end=" ")
        self.print(f"(about {expected} s)", style="dim")
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        self.results["seconds"][title] = seconds
        self.print(f"took {seconds:.1f} s", style="dim")


def _train(run: Any, quiet: bool) -> Any:
    from unmask.evaluation.demo import train_run
    from unmask.training import Callback, Interrupted, make_progress

    try:
        return train_run(run, Callback() if quiet else make_progress(error_console, verbose=True))
    except Interrupted as stop:
        error_console.print(
            f"Interrupted; the checkpoint of step {stop.step} is saved. Run the same command to resume."
        )
        raise SystemExit(130) from stop


def _score_table(scores: list[Any]) -> Table:
    from unmask.likelihood import format_with_errors

    table = Table(box=None, header_style="bold", title="bits per character ± Monte-Carlo error", title_justify="left")
    table.add_column("")
    for name in ("masked diffusion", "autoregressive"):
        table.add_column(name, justify="right")
    table.add_row("the story", *(format_with_errors(one.story, "bits_per_char") for one in scores))
    table.add_row("its words in reverse", *(format_with_errors(one.backwards, "bits_per_char") for one in scores))
    return table
