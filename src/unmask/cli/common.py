"""What the verbs of `unmask eval` leave behind besides words: their report and a picture, as files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from unmask.errors import UnmaskError, is_out_of_memory

if TYPE_CHECKING:
    from unmask.pipeline import MaskedDiffusionLM
from pathlib import Path

from unmask.checkpoint import is_checkpoint_name

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
Seed = Annotated[int, typer.Option(help="Seed; sequence i of several has seed + i.")]
Steps = Annotated[
    int | None,
    typer.Option(
        min=1, help="At most this many network calls of a masked model; without it one token a call, the exact law."
    ),
]
BoundSteps = Annotated[
    list[int] | None, typer.Option("--steps", min=1, help="Also the bound of the T-step process; repeatable.")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="How many at a time; the result does not depend on it.")]
Checkpoint = Annotated[
    str | None,
    typer.Argument(
        help="A folder written by 'unmask train' or 'unmask convert', or a model that ships with the package "
        "('unmask list shipped'); without it the shipped model 'stories'.",
        metavar="CKPT",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...; the GPU where there is one.")]

console = Console()
errors = Console(stderr=True)


@dataclass(frozen=True)
class Where:
    """Where a network computes, and in what."""

    device: Device = None
    dtype: Annotated[
        Literal["auto", "float32", "bf16"], typer.Option(help="What the network computes in; auto: bf16 on a GPU.")
    ] = "auto"

    def load(self, checkpoint: str | None) -> MaskedDiffusionLM:
        """The checkpoint that is named, there."""
        from unmask.pipeline import load

        return load(checkpoint, device=self.device, dtype=self.dtype)

    def load_all(self, *checkpoints: str | None) -> list[MaskedDiffusionLM]:
        """Those of several checkpoints that are named, there."""
        return [self.load(checkpoint) for checkpoint in checkpoints if checkpoint is not None]


def json_text(result: Any) -> str:
    """One JSON object, as every verb writes it."""
    return json.dumps(result, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def print_json(result: Any) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json_text(result))


@contextmanager
def progress(description: str, total: int | None, quiet: bool = False) -> Iterator[Callable[[float], None]]:
    """A bar with rate and time left on a terminal; nothing elsewhere. Yields the function that advances it."""
    if quiet or not errors.is_terminal:
        yield lambda done: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.advance(task, done)


@contextmanager
def room_for(batch_size: int | None, particles: int = 1) -> Iterator[None]:
    """Where what is computed in this block, `batch_size` sequences at a time, does not fit, say so in one sentence.

    All `particles` of a sequence are walked at a time.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if particles > 1:
            raise UnmaskError(f"{particles} particles do not fit into memory; lower --particles.") from None
        alone = batch_size == 1
        what = "Not even a batch of 1 fits" if alone else f"A batch of {batch_size or 'the usual size'} does not fit"
        remedy = "take shorter texts or another --device" if alone else "lower --batch-size"
        raise UnmaskError(f"{what} into memory; {remedy}.") from None


BLANK = "[MASK"
STDIN = "-"


def split_blanks(words: list[str]) -> tuple[str | None, list[str]]:
    """For texts with blanks: a first word without one is the checkpoint; without it, the shipped model is meant."""
    first, *others = words
    if BLANK in first or first == STDIN:
        return None, _read(words, "fill; give lines with [MASK] or [MASK:n] blanks")
    if others:
        return first, _read(others, "fill; give lines with [MASK] or [MASK:n] blanks")
    if is_checkpoint_name(first):
        raise UnmaskError(f"'{first}' is a checkpoint and there is no text behind it; add one with a [MASK] blank.")
    raise UnmaskError(f"The text {first!r} has no blank; mark one with [MASK] or [MASK:n].")


def split_texts(words: list[str], verb: str = "score") -> tuple[str | None, list[str]]:
    """For any texts: of several words the first is the checkpoint; a single one is a text for the shipped model."""
    first, *others = words
    if others:
        return first, _read(others, f"{verb}; give one text a line")
    if is_checkpoint_name(first):
        raise UnmaskError(f"'{first}' is a checkpoint and there is no text behind it; add one.")
    return None, _read(words, f"{verb}; give one text a line")


def _read(texts: list[str], purpose: str) -> list[str]:
    """The texts themselves, or, for a single '-', the lines of standard input."""
    lines = _lines_of_stdin() if texts == [STDIN] else texts
    if not lines:
        raise UnmaskError(f"Standard input held no text to {purpose}.")
    return lines


def _lines_of_stdin() -> list[str]:
    """Its lines that are not empty. By the locale, bytes that are no text are an error or half surrogate pairs."""
    try:
        lines = [line.rstrip("\r\n") for line in sys.stdin or () if line.strip()]
        "".join(lines).encode()
    except UnicodeError as error:
        raise UnmaskError("Standard input is not valid UTF-8; convert it first.") from error
    return lines


Out = Annotated[Path | None, typer.Option(help="Write what --json prints into this file as well.")]


def check_outputs(out: Path | None, plot: Path | None) -> None:
    """Say before the work begins what would be wrong after it."""
    from unmask.io import check_output_file
    from unmask.plots.style import check_picture

    if out is not None:
        check_output_file(out)
    if plot is not None:
        check_picture(plot)


def deliver(report: dict[str, Any], show: Callable[[], None], out: Path | None, as_json: bool) -> None:
    """Print a report as JSON, or show it in words, and write it into the file that is named, if one is."""
    from unmask.io import atomic_text

    if as_json:
        print_json(report)
    else:
        show()
    if out is not None:
        atomic_text(out, json_text(report))
