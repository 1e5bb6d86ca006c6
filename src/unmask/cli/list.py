"""`unmask list`: components, recipes and shipped models."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from unmask.cli.common import Json, console, print_json


def list_members(
    axis: Annotated[
        str | None,
        typer.Argument(help="schedule, objective, sampler, model, source, ..., recipe, or shipped for the models."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List everything that a recipe or the command line can name, with its options.

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
            if name not in registry.AXES:
                table.add_row(member)
                continue
            component = registry.get(name, member)
            summary = " ".join((component.__doc__ or "").partition("\n\n")[0].split())
            options = ", ".join(option for option in component.model_fields if option != "name")
            table.add_row(member, Text.assemble(summary, (f"  ({options})" if options else "", "dim")))
        console.print(table)
