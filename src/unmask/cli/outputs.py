"""What the verbs of `unmask eval` leave behind besides words: their report and a picture, as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from unmask.cli.common import json_text, print_json

Out = Annotated[Path | None, typer.Option(help="Write what --json prints into this file as well.")]


def check_outputs(out: Path | None, plot: Path | None) -> None:
    """Say before the work begins what would be wrong after it."""
    from unmask.files import must_be_a_place_for
    from unmask.plots.style import check_picture

    if out is not None:
        must_be_a_place_for(out)
    if plot is not None:
        check_picture(plot)


def deliver(report: dict[str, Any], show: Callable[[], None], out: Path | None, as_json: bool) -> None:
    """Print a report as JSON, or show it in words, and write it into the file that is named, if one is."""
    from unmask.files import atomic_text

    if as_json:
        print_json(report)
    else:
        show()
    if out is not None:
        atomic_text(out, json_text(report))
