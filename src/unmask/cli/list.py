"""`unmask list`: components, recipes, protocols and shipped models."""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from unmask.cli.common import Json, console, print_json


def list_members(
    axis: Annotated[
        str | None,
        typer.Argument(
            help="schedule, objective, sampler, model, source, ..., recipe, protocol, or shipped (the shipped models)."
        ),
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
    from unmask.data.protocols import PROTOCOLS
    from unmask.errors import UnmaskError, did_you_mean

    members = {name: registry.names(name) for name in registry.AXES}
    members |= {"recipe": shipped_recipes(), "protocol": list(PROTOCOLS), "shipped": shipped_models()}
    if axis is not None:
        if axis not in members:
            raise UnmaskError(f"There is no axis named '{axis}'.{did_you_mean(axis, members)}")
        members = {axis: members[axis]}
    if as_json:
        print_json(members)
        return
    describe = {"recipe": _describe_recipe, "protocol": _describe_protocol, "shipped": _describe_shipped}
    for name, known in members.items():
        console.print(f"[bold]{name}[/bold]")
        table = Table.grid(padding=(0, 0, 0, 2), pad_edge=True)
        table.add_column(no_wrap=True)
        for member in known:
            summary, details = describe[name](member) if name in describe else _describe_member(name, member)
            table.add_row(member, Text.assemble(summary, (f"  ({details})" if details else "", "dim")))
        console.print(table)


def _describe_member(axis: str, name: str) -> tuple[str, str]:
    """What a member is, from its docstring, and its options."""
    from unmask import registry

    member = registry.get(axis, name)
    summary = (member.__doc__ or "").partition("\n\n")[0]
    return " ".join(summary.split()), ", ".join(option for option in member.model_fields if option != "name")


def _describe_recipe(name: str) -> tuple[str, str]:
    """What a recipe is for, from the comment at its top, and its size and number of steps."""
    import yaml

    from unmask.config import RECIPES

    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    comment = takewhile(lambda line: line.startswith("# ") and not line.startswith("#   "), text.splitlines())
    values = yaml.safe_load(text)
    training, model = values["training"], values.get("model", {})
    size = f"{model['layers']} blocks of {model['hidden_size']}" if "hidden_size" in model else model.get("size")
    steps = f"{training['steps']:,} steps of {training['batch_size']} rows"
    sentences = " ".join(line[2:] for line in comment).rpartition(".")[0]
    return f"{sentences}.", f"{size}, {steps}" if size else steps


def _describe_protocol(name: str) -> tuple[str, str]:
    """The data of a protocol, and its rows."""
    from unmask.data.protocols import get_protocol

    protocol = get_protocol(name)
    return protocol.about, f"{protocol.policy['name']} rows of {protocol.length:,}"


def _describe_shipped(name: str) -> tuple[str, str]:
    """What a shipped model is, from its card and the recipe of the same name, and its size on disk."""
    from unmask.checkpoint import SHIPPED

    card = (SHIPPED / name / "README.md").read_text(encoding="utf-8")
    about = next((line for line in card.splitlines() if line.startswith("A")), "A model").partition(", trained")[0]
    megabytes = sum(file.stat().st_size for file in (SHIPPED / name).glob("*.safetensors")) / 1e6
    return f"{about}. {_describe_recipe(name)[0]}", f"{megabytes:.1f} MB"
