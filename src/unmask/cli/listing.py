"""`unmask list`: what can be named in a recipe or on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

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
    from unmask import registry, shelf
    from unmask.config import shipped_recipes
    from unmask.errors import UnmaskError, did_you_mean

    members = {name: list(registry.names(name)) for name in registry.AXES}
    members |= {"recipe": shipped_recipes(), "shipped": shelf.names()}
    if axis is not None:
        if axis not in members:
            raise UnmaskError(f"There is no axis named '{axis}'.{did_you_mean(axis, members)}")
        members = {axis: members[axis]}
    if as_json:
        print_json(members)
        return
    for name, known in members.items():
        console.print(f"[bold]{name}[/bold]")
        for member in known:
            console.print(f"  {member:<16}{_about(name, member) if name in registry.AXES else ''}", highlight=False)


def _about(axis: str, member: str) -> str:
    """The first line of a member's docstring and its options."""
    from unmask import registry

    found = registry.get(axis, member)
    options = [name for name in found.model_fields if name != "name"]
    about = (found.__doc__ or "").strip().splitlines()[0]
    return about + (f"  [dim]({', '.join(options)})[/dim]" if options else "")
