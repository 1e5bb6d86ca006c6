"""The options of `unmask bench`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import typer


class Rival(str, Enum):
    """Whom a bound may be compared with; a type of its own, since Typer's lists take no literals."""

    plain = "plain"
    training = "training"


What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WHAT] [KEY=VALUE]...",
        help="A recipe (name or .yaml) or a checkpoint's folder, and overrides such as model.size=tiny; the data are "
        "synthetic. Without it: on a GPU the small network, 50,258 tokens, length 1,024 and batch 64; on a CPU nano, "
        "257, 128 and 16.",
    ),
]
Size = Annotated[Literal["nano", "tiny", "small", "medium"] | None, typer.Option(help="Size of the network.")]
Vocab = Annotated[int | None, typer.Option(min=2, help="Tokens of the vocabulary, the mask among them.")]
Length = Annotated[int | None, typer.Option(min=2, help="Tokens of a row.")]
Lengths = Annotated[list[int] | None, typer.Option(min=2, help="Tokens of a text; repeatable. 128 to 8192 on a GPU.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Rows at a time.")]
Batches = Annotated[list[int] | None, typer.Option(min=1, help="Texts at a time; repeatable. 1, 16 and 64 on a GPU.")]
StepCounts = Annotated[
    list[int] | None, typer.Option(min=1, help="Steps T of masked diffusion; repeatable. 1000 on a GPU.")
]
Limit = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds one figure may take; a longer walk is timed over an excerpt, marked ~. inf walks all."
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="Rounds that count; every contender runs once a round.")]
Warmup = Annotated[int, typer.Option(min=0, help="Rounds before them that do not.")]
Precision = Annotated[Literal["auto", "bf16", "float32"] | None, typer.Option(help="What matrices are multiplied in.")]
Memory = Annotated[
    bool | None, typer.Option(help="Peak memory of each contender alone; on a CPU in a process of its own.")
]
Against = Annotated[Literal["plain"] | None, typer.Option(help="Also the plain dense implementation, and the ratios.")]
