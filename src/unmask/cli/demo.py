"""`unmask demo`: a tour of the package that needs no network and no files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import terminal
from unmask.cli.common import Json, console, error_console, format_bound, print_json, print_table
from unmask.errors import UnmaskError
from unmask.io import check_new_folder, check_writable

if TYPE_CHECKING:
    from unmask.config import Recipe
    from unmask.likelihood import Bound
    from unmask.pipeline import MaskedDiffusionLM

CALLS = 64
"""Network calls that rewrite the middle of the story."""
BLANK_TOP_P = 0.5
PRECISION = 0.1
"""Monte-Carlo error of the scores, in bits per token over both texts."""
BLANKS = (
    "Once upon a time, there was a little [MASK] named Tom.",
    "Lily was very [MASK] because she had lost her favorite toy.",
    "The dog ran to the park and saw a big [MASK] in the tree.",
)
FIRST = "Once upon a time, there was a little girl named Lily."
MIDDLE = (
    "One day, she found a small bird with a hurt wing. She took it home and gave it some water. "
    "Every day she sat with the bird and sang to it. Soon the bird could fly again."
)
LAST = "Lily was very happy and they became best friends."
STORY = f"{FIRST} {MIDDLE} {LAST}"
TALES = Path(__file__).parents[1] / "recipes" / "pirates.txt"
"""120 tales of pirates, put together from sentences."""
PROMPT, LENGTH = "Once upon a time, there was a pirate", 128
FINE_TUNING = (
    "data.source.separator=line",
    f"data.length={LENGTH}",
    "optimizer.learning_rate=0.001",
    "optimizer.warmup=5",
    "optimizer.ema=0.9",
    "training.steps=40",
    "training.batch_size=8",
    "training.log_every=5",
    "training.validate_every=40",
    "training.validation_rows=6",
    "training.save_every=40",
    "training.keep=1",
)
NEXT = (
    'unmask sample --prompt "One day, a dragon" --watch',
    "unmask sample --html replay.html",
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
    """Generate a story, fill blanks, rewrite and score with a shipped model; then teach it to tell tales of pirates.

    On a terminal the story unmasks as you watch, in the colour of the network's confidence. Nothing is downloaded.
    Ctrl-C during training saves a checkpoint, and the same command resumes.

    Examples:

        unmask demo

        unmask demo --fresh --json
    """
    tour = Tour(quiet=as_json)
    with tour.part("Load the shipped model and its autoregressive counterpart"):
        # imports torch, which takes longest here
        from unmask.checkpoint import DEFAULT_AR_MODEL, DEFAULT_MODEL
        from unmask.pipeline import load
        from unmask.training.run import recipe_from

        recipe = recipe_from(str(TALES), DEFAULT_MODEL, FINE_TUNING)
        finished = _is_finished(out, recipe, fresh)
        lm, ar = load(DEFAULT_MODEL), load(DEFAULT_AR_MODEL)
    _show(tour, lm, ar)
    _fine_tune(tour, lm, None if finished else recipe, out)
    if as_json:
        print_json(tour.results)
        return
    tour.print(f"\nDone in {sum(tour.results['seconds'].values()):.0f} s. Try next", style="bold")
    for line in (*NEXT, f'unmask sample {out} --prompt "{PROMPT}" --top-p 0.9'):
        tour.print(f"  {line}")


class Tour:
    """Prints the parts of the demo unless `quiet`, and collects their results."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.results: dict[str, Any] = {"seconds": {}}

    def print(self, text: str = "", **style: Any) -> None:
        if not self.quiet:
            console.print(text, soft_wrap=True, markup=False, **style)

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """Print the title of a part, and then the time it took."""
        self.print(f"\n{title}", style="bold")
        start = time.monotonic()
        yield
        seconds = time.monotonic() - start
        self.results["seconds"][title] = seconds
        self.print(f"took {seconds:.1f} s", style="dim")


def _show(tour: Tour, lm: MaskedDiffusionLM, ar: MaskedDiffusionLM) -> None:
    """Generate, fill, rewrite and score."""
    from unmask.data.encoding import encode

    results = tour.results
    with tour.part("Generate a story"):
        frames = lm.stream()
        seen = list(frames) if tour.quiet else terminal.watch(frames)
        results["story"] = seen[-1].text
        tour.print()

    with tour.part(f"Fill three blanks, top-p {BLANK_TOP_P}"):
        results["fills"] = lm.fill(BLANKS, top_p=BLANK_TOP_P)
        for before, after in zip(BLANKS, results["fills"], strict=True):
            tour.print(f"{before}\n  → {after}")

    with tour.part("Rewrite the middle of a story"):
        size = len(encode(lm.text_processor.tokenizer, [f" {MIDDLE}"])[0])
        results["rewritten"] = lm.fill(f"{FIRST} [MASK:{size}] {LAST}", steps=CALLS)
        tour.print(f"{STORY}\n  → {results['rewritten']}")

    with tour.part("Score that story with both models"):
        texts = [STORY, " ".join(reversed(STORY.split()))]
        scores = [one.score(texts, precision=PRECISION) for one in (lm, ar)]
        if not tour.quiet:
            _print_scores(scores)
    results["scores"] = {
        name: {"story": bound[0].as_dict(), "backwards": bound[1].as_dict()}
        for name, bound in zip(("masked diffusion", "autoregressive twin"), scores, strict=True)
    }


def _fine_tune(tour: Tour, lm: MaskedDiffusionLM, recipe: Recipe | None, out: Path) -> None:
    """Continue a prompt before and after training a copy; without a recipe the run in `out` is finished."""
    from unmask.checkpoint import DEFAULT_MODEL
    from unmask.likelihood import Bound
    from unmask.pipeline import load
    from unmask.plots.curves import draw_runs, read_runs

    results = tour.results
    length = min(LENGTH, lm.row_length)
    with tour.part(f"Continue '{PROMPT}', before fine-tuning"):
        results["before"] = lm.generate(prompt=PROMPT, length=length)[0]
        tour.print(results["before"])

    with tour.part(f"Fine-tune a copy on {TALES.name} (unmask train {TALES.name} --from {DEFAULT_MODEL} --out {out})"):
        if recipe is None:
            tour.print("already trained; --fresh trains again")
        else:
            _train(out, recipe, tour.quiet)
        picture = out / "curves.png"
        runs = read_runs([out])
        draw_runs(runs, picture, "steps")
        bound = Bound.from_dict(runs[0].validated[-1]["validation"])
        tour.print(f"{format_bound(bound)}\nCurves: {picture}")
    results["training"] = {"path": str(out), "picture": str(picture), "bound": bound.as_dict()}

    with tour.part(f"Continue '{PROMPT}', after fine-tuning"):
        tuned = load(out)
        tuned.generation_config = lm.generation_config
        results["after"] = tuned.generate(prompt=PROMPT, length=length)[0]
        tour.print(results["after"])


def _is_finished(out: Path, recipe: Recipe, fresh: bool) -> bool:
    """Whether the run is complete; raise `UnmaskError` if it cannot be trained. `fresh` deletes an earlier run."""
    from unmask.training.checkpointing import LOCK_FILES, clear_abandoned, find_latest, find_resume_point, run_lock

    latest = find_latest(out)
    if latest is not None and not fresh and latest.name.endswith(f"{recipe.training.steps:08d}"):
        return True
    check_writable(out)
    with run_lock(out):
        if latest is None:
            clear_abandoned(out)
            check_new_folder(out, "choose another --out", LOCK_FILES)
        elif fresh:
            shutil.rmtree(out)
        else:
            try:
                find_resume_point(out, recipe, "auto")
            except UnmaskError as error:
                raise UnmaskError(
                    f"The run in '{out}' is damaged, or not the run of the demo; choose another --out, or train again "
                    "with --fresh."
                ) from error
    return False


def _train(out: Path, recipe: Recipe, quiet: bool) -> None:
    from unmask.training import Callback, Interrupted, make_progress, train

    progress = Callback() if quiet else make_progress(error_console, verbose=True)
    try:
        train(recipe, out, resume="auto", callbacks=[progress])
    except Interrupted as stop:
        error_console.print(
            f"Interrupted; the checkpoint of step {stop.step} is saved. Run the same command to resume."
        )
        raise SystemExit(stop.exit_code) from stop


def _print_scores(scores: list[Bound]) -> None:
    from unmask.likelihood import format_with_errors

    rows = [
        (name, *(format_with_errors(one[place], "bits_per_char") for one in scores))
        for place, name in enumerate(("the story", "its words in reverse"))
    ]
    print_table(("", "masked diffusion", "autoregressive"), rows, title="bits per character ± Monte-Carlo error")
