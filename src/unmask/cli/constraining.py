"""The options by which verbs constrain what is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.constraints import Constraint


@dataclass(frozen=True)
class Constraining:
    """What a text must hold to, and how hard its law is sought."""

    match: Annotated[
        str | None, typer.Option(help="A regular expression that the whole text matches.", metavar="REGEX")
    ] = None
    with_words: Annotated[
        list[str] | None, typer.Option("--with", help="A whole word that appears; may be repeated.", metavar="WORD")
    ] = None
    without: Annotated[
        list[str] | None, typer.Option(help="A whole word that does not; may be repeated.", metavar="WORD")
    ] = None
    characters: Annotated[
        str | None, typer.Option(help="Length of the text in characters: 50, or 40-60.", metavar="N-M")
    ] = None
    particles: Annotated[
        int,
        typer.Option(min=1, help="Weighed walks a text; the more, the closer to the model's law under the constraint."),
    ] = 1

    def wish(self) -> dict[str, Any]:
        """What is asked for, as a model takes it."""
        from unmask.constraints import NoWords, Regex, Words

        asked: list[Constraint] = [] if self.match is None else [Regex(self.match)]
        asked += [Words(*self.with_words)] if self.with_words else []
        asked += [NoWords(*self.without)] if self.without else []
        asked += [_characters(self.characters)] if self.characters is not None else []
        return {"constraint": asked or None, "particles": self.particles}


def told(wish: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, for machines."""
    return {"constraints": [str(one) for one in wish["constraint"] or []], "particles": wish["particles"]}


def _characters(text: str) -> Constraint:
    from unmask.constraints import Characters

    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None:
        raise UnmaskError(f"--characters {text} is no length; write it as 50 or as 40-60.")
    return Characters(int(found[1]), int(found[2] or found[1]))
