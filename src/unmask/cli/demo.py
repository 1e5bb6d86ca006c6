"""`unmask demo`: the first minute with the package, which needs no network and no file of yours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.cli import watching
from unmask.cli.common import Json, console, errors, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from unmask.evaluation.demo import DemoRun, Scores
    from unmask.likelihood import Bound
    from unmask.pipeline import MaskedDiffusionLM
    from unmask.text_processor import Frame

NEXT = (
    'unmask sample --prompt "One day, a dragon" --steps 64 --watch',
    "unmask sample --steps 32 --html replay.html",
    'unmask fill "The [MASK] sat on the [MASK:3] and smiled."',
    'unmask score "The cat sat on the mat."',
    "unmask train my.txt",
    "unmask train my.txt --from stories",
)


def demo(
    out: Annotated[Path, typer.Option(help="Where the run is trained; a second demonstration shows it again.")] = Path(
        "runs/demo"
    ),
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the run if it is there, and train again.")] = False,
    as_json: Json = False,
) -> None:
    """See a shipped model write stories, fill blanks, rewrite a middle and score; then train one of your own.

    On a terminal the stories unmask before your eyes, in the colour of the network's confidence; elsewhere the finished
    texts are printed. Nothing is downloaded. Ctrl-C while it trains saves, and the same command goes on.

    Examples:

        unmask demo

        unmask demo --fresh --json
    """
    show = Show(quiet=as_json)
    with show.part("Opening the model that ships and its autoregressive twin", 5):
        # Importing torch takes longer than all the rest of this part.
        from unmask.evaluation import demo as asked

        learner = asked.prepare_run(out, fresh)
        lm, twin = asked.open_pair()
    show.stories(lm)
    show.blanks(lm)
    show.rewriting(lm)
    show.scores(lm, twin)
    show.training(learner)
    show.end(out)


class Show:
    """One part after the other: what it is and about how long it takes, what comes of it, how long it took."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.results: dict[str, Any] = {"seconds": {}}

    @contextmanager
    def part(self, title: str, about: int) -> Iterator[None]:
        """A part that takes about so many seconds on two cores."""
        self.say(f"\n{title}", style="bold", end=" ")
        self.say(f"(about {about} s)", style="dim")
        start = time.monotonic()
        yield
        taken = time.monotonic() - start
        self.results["seconds"][title] = taken
        self.say(f"took {taken:.1f} s", style="dim")

    def say(self, words: Any = "", **style: Any) -> None:
        """A line, or a table, for people."""
        if not self.quiet:
            console.print(words, highlight=False, soft_wrap=isinstance(words, str), markup=False, **style)

    def stories(self, lm: MaskedDiffusionLM) -> None:
        """Stories that unmask."""
        from unmask.evaluation.demo import CALLS, STORIES, WRITING

        with self.part(f"{STORIES} stories, each in at most {CALLS} network calls, top-p {WRITING.top_p}", 15):
            self.results["stories"] = [
                self._watched(lm.stream(steps=CALLS, seed=seed, rule=WRITING)) for seed in range(STORIES)
            ]

    def blanks(self, lm: MaskedDiffusionLM) -> None:
        """Blanks and what is written there."""
        from unmask.evaluation.demo import BLANKS, FILLING, fill_blanks

        with self.part(f"Three blanks, top-p {FILLING.top_p}", 1):
            self.results["fills"] = fill_blanks(lm)
            for before, after in zip(BLANKS, self.results["fills"], strict=True):
                self.say(f"{before}\n  → {after}")

    def rewriting(self, lm: MaskedDiffusionLM) -> None:
        """A story whose middle is written anew."""
        from unmask.evaluation.demo import STORY, rewrite

        with self.part("The middle of a story, rewritten between its first and its last sentence", 3):
            self.results["rewritten"] = rewrite(lm)
            self.say(f"{STORY}\n  → {self.results['rewritten']}")

    def scores(self, lm: MaskedDiffusionLM, twin: MaskedDiffusionLM) -> None:
        """How likely the story is to both models."""
        from unmask.evaluation.demo import score

        with self.part("How likely that story is, to the model and to its twin", 8):
            judged = {"masked diffusion": score(lm), "autoregressive twin": score(twin)}
            self.say(_score_table(judged))
        self.results["scores"] = {
            name: {"story": one.story.as_dict(), "backwards": one.backwards.as_dict()} for name, one in judged.items()
        }

    def training(self, learner: DemoRun) -> None:
        """A run on this machine, its curve and what it has reached."""
        from unmask.cli.report import bound_words
        from unmask.plots.curves import draw_runs, read_runs

        with self.part(f"unmask train demo --out {learner.folder}: Python's documentation, on your machine", 60):
            if learner.finished:
                self.say("trained earlier; --fresh trains it again")
            bound = self._trained(learner)
            picture = learner.folder / "curves.png"
            draw_runs(read_runs([learner.folder]), picture, "steps")
            self.say(f"{bound_words(bound)}\nIts curve: {picture}")
        self.results["training"] = {"path": str(learner.folder), "picture": str(picture), "bound": bound.as_dict()}

    def end(self, out: Path) -> None:
        """What to type next, or all of it as JSON."""
        if self.quiet:
            print_json(self.results)
            return
        self.say(f"\nDone in {sum(self.results['seconds'].values()):.0f} s. What to type next", style="bold")
        for line in (*NEXT, f"unmask sample {out} --length 64"):
            self.say(f"  {line}")

    def _watched(self, walk: Iterator[Frame]) -> str:
        """The text of a walk that was shown, a blank line behind it."""
        frames = list(walk) if self.quiet else watching.show(walk)
        self.say()
        return frames[-1].text

    def _trained(self, learner: DemoRun) -> Bound:
        from unmask.evaluation.demo import train_run
        from unmask.training import Callback, Interrupted, make_progress

        try:
            return train_run(learner, Callback() if self.quiet else make_progress(errors, verbose=True))
        except Interrupted as stop:
            errors.print(f"Stopped and saved after step {stop.step}; the same command goes on from there.")
            raise SystemExit(130) from stop


def _score_table(judged: dict[str, Scores]) -> Table:
    from rich.table import Table

    from unmask.likelihood import format_with_errors

    table = Table(box=None, header_style="bold", title="bits per character, ± error of the draws", title_justify="left")
    table.add_column("")
    for name in judged:
        table.add_column(name, justify="right")
    table.add_row("the story", *(format_with_errors(one.story, "bits_per_char") for one in judged.values()))
    table.add_row(
        "its words backwards", *(format_with_errors(one.backwards, "bits_per_char") for one in judged.values())
    )
    return table
