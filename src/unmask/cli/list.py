"""`unmask list`: what can be named in a recipe or on the command line."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from unmask.cli.common import Json, console, print_json


def listing(
    axis: Annotated[
        str | None, typer.Argument(help="schedule, objective, sampler, model, source, ..., recipe or shipped (models).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the members of every axis, with their options.

    Examples:

        unmask list

        unmask list schedule
    """
    from unmask import registry
    from unmask.checkpoint import shipped_models
    from unmask.config import shipped_recipes
    from unmask.errors import UnmaskError, did_you_mean

    members = {name: list(registry.names(name)) for name in registry.AXES}
    members |= {"recipe": shipped_recipes(), "shipped": shipped_models()}
    if axis is not None:
        if axis not in members:
            raise UnmaskError(f"There is no axis named '{axis}'.{did_you_mean(axis, members)}")
        members = {axis: members[axis]}
    if as_json:
        print_json(members)
        return
    for name, known in members.items():
        console.print(f"[bold]{name}[/bold]")
        table = Table.grid(padding=(0, 0, 0, 2), pad_edge=True)
        for member in known:
            table.add_row(member, *_about(name, member) if name in registry.AXES else ())
        console.print(table)


def _about(axis: str, member: str) -> tuple[Text]:
    """What a member says of itself, its docstring up to an empty line, and its options."""
    from unmask import registry

    found = registry.get(axis, member)
    options = ", ".join(name for name in found.model_fields if name != "name")
    about = " ".join((found.__doc__ or "").partition("\n\n")[0].split())
    return (Text.assemble(about, (f"  ({options})" if options else "", "dim")),)
