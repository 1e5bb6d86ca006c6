"""What the verbs share: options, progress for people, JSON for machines."""

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
    from unmask.generation import MaskedDiffusionLM

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
        from unmask.generation import load

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
