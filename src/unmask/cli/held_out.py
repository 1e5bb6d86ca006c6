"""The options by which verbs are told of held-out text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True)
class HeldOut:
    """Text that no checkpoint was trained on, and how it is read."""

    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Held-out text: files or folders of any kind that 'unmask train' reads, hf:NAME, or '-'; without it "
            "the validation split of the (first) checkpoint's training data."
        ),
    ] = None
    separator: Annotated[
        str | None, typer.Option(help="Line that separates documents in --data; or line, paragraph.")
    ] = None
    field: Annotated[
        str | None, typer.Option(help="Field of the records in --data (JSON, CSV, Parquet, ...) that holds the text.")
    ] = None
