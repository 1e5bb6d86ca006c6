"""The options by which verbs constrain what is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.constraints import Constraint

Match = Annotated[str | None, typer.Option(help="A regular expression that the whole text matches.", metavar="REGEX")]
With = Annotated[list[str] | None, typer.Option("--with", help="A word that appears; may be repeated.", metavar="WORD")]
Without = Annotated[list[str] | None, typer.Option(help="A word that does not; may be repeated.", metavar="WORD")]
Characters = Annotated[str | None, typer.Option(help="Length of the text in characters: 50, or 40-60.", metavar="N-M")]
Particles = Annotated[
    int,
    typer.Option(min=1, help="Weighed walks a text; the more, the closer to the model's law under the constraint."),
]


def constraints(
    match: str | None, words: list[str] | None, no_words: list[str] | None, characters: str | None
) -> list[Constraint] | None:
    """What the options ask for; None if nothing."""
    from unmask.constraints import NoWords, Regex, Words

    asked: list[Constraint] = [] if match is None else [Regex(match)]
    asked += [Words(*words)] if words else []
    asked += [NoWords(*no_words)] if no_words else []
    asked += [_characters(characters)] if characters is not None else []
    return asked or None


def told(asked: list[Constraint] | None, particles: int) -> dict[str, Any]:
    """What was asked for, for machines."""
    return {"constraints": [str(one) for one in asked or []], "particles": particles}


def _characters(text: str) -> Constraint:
    from unmask.constraints import Characters

    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None:
        raise UnmaskError(f"--characters {text} is no length; write it as 50 or as 40-60.")
    return Characters(int(found[1]), int(found[2] or found[1]))
