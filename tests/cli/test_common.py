"""Groups of options: what Typer sees of them, and what a verb gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from unmask.cli.common import option_groups


@dataclass(frozen=True)
class Colour:
    hue: Annotated[int, typer.Option(help="Its angle.")]
    dark: Annotated[bool, typer.Option("--dark", help="At night.")] = False


@dataclass(frozen=True)
class Glossy(Colour):
    shine: Annotated[list[str] | None, typer.Option(help="Where it shines; repeatable.")] = None


def call(verb, *arguments: str):
    app = typer.Typer()
    app.command()(verb)
    return CliRunner().invoke(app, list(arguments))


def paint(seen: list[object]):
    @option_groups
    def verb(wall: str, *, coats: int = 1, glossy: Glossy, quick: bool = False) -> None:
        """Paint a wall."""
        seen.append((wall, coats, glossy, quick))

    return verb


def test_a_verb_gets_its_group_as_one_object():
    seen: list[object] = []
    assert call(paint(seen), "north", "--hue", "30", "--dark", "--shine", "left", "--shine", "top").exit_code == 0
    assert call(paint(seen), "south", "--coats", "2", "--hue", "7", "--quick").exit_code == 0
    assert seen == [("north", 1, Glossy(30, True, ["left", "top"]), False), ("south", 2, Glossy(7), True)]


def test_options_stand_where_their_group_does():
    shown = call(paint([]), "--help").output
    order = [shown.index(name) for name in ("Paint a wall", "--coats", "--hue", "--dark", "--shine", "--quick")]
    assert order == sorted(order)
    assert "Where it shines" in shown


def test_a_field_without_a_default_is_required():
    done = call(paint([]), "north")
    assert done.exit_code == 2
    assert "--hue" in done.output


def test_two_groups_may_not_share_an_option():
    def verb(*, one: Colour, other: Glossy) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'hue'"):
        option_groups(verb)
