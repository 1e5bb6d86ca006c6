"""Dataclasses of options: what Typer sees of them, and what a verb gets."""

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


@pytest.fixture
def painted():
    return []


@pytest.fixture
def paint(painted):
    """Run a verb with a group of options."""

    @option_groups
    def verb(wall: str, *, coats: int = 1, glossy: Glossy, quick: bool = False) -> None:
        """Paint a wall."""
        painted.append((wall, coats, glossy, quick))

    app = typer.Typer()
    app.command()(verb)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_a_verb_gets_a_group_as_one_object(paint, painted):
    assert paint("north", "--hue", "30", "--dark", "--shine", "left", "--shine", "top").exit_code == 0
    assert paint("south", "--coats", "2", "--hue", "7", "--quick").exit_code == 0
    assert painted == [("north", 1, Glossy(30, True, ["left", "top"]), False), ("south", 2, Glossy(7), True)]


def test_options_keep_the_place_of_their_group(paint):
    shown = paint("--help").output
    order = [shown.index(name) for name in ("Paint a wall", "--coats", "--hue", "--dark", "--shine", "--quick")]
    assert order == sorted(order)
    assert "Where it shines" in shown


def test_a_field_without_a_default_is_required(paint):
    done = paint("north")
    assert done.exit_code == 2
    assert "--hue" in done.output


def test_groups_may_not_share_an_option():
    def verb(*, one: Colour, other: Glossy) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'hue'"):
        option_groups(verb)
