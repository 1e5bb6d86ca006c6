"""The options by which verbs choose how a canvas is unmasked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from unmask.errors import UnmaskError

_ORDER = (
    "Which positions come first: confidence, margin, entropy, planner ('unmask train planner'), left_to_right or "
    "uniform, in exactly --steps calls; threshold or entropy_bounded, in as few as the network is sure enough for. "
    "Without it a uniform order."
)
_SAMPLER = "A sampler ('unmask list sampler') by name or with options: 'name: remdm, strategy: loop, eta: 0.05'."

Orders = Annotated[list[str] | None, typer.Option("--order", help=f"{_ORDER} Repeatable.", metavar="ORDER")]
SamplerSpecs = Annotated[list[str] | None, typer.Option("--sampler", help=f"{_SAMPLER} Repeatable.", metavar="SPEC")]


@dataclass(frozen=True)
class Ordering:
    """One way to unmask."""

    order: Annotated[str | None, typer.Option(help=_ORDER, metavar="ORDER")] = None
    sampler: Annotated[str | None, typer.Option(help=_SAMPLER, metavar="SPEC")] = None

    def way(self) -> dict[str, Any]:
        """What is asked for, as a model takes it."""
        return {"order": self.order, "sampler": sampler_spec(self.sampler)}


def sampler_spec(text: str | None) -> str | Mapping[str, Any] | None:
    """A name, or the mapping that 'name: ..., option: ...' is."""
    import yaml

    if text is None or ":" not in text:
        return text
    try:
        spec = yaml.safe_load(text if text.lstrip().startswith("{") else f"{{{text}}}")
    except yaml.YAMLError:
        spec = None
    if not isinstance(spec, Mapping):
        raise UnmaskError(f"--sampler '{text}' cannot be read; write it as 'name: remdm, strategy: cap'.")
    return spec
