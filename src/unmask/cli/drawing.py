"""The options by which verbs choose tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from unmask.samplers.draws import TokenRule


@dataclass(frozen=True)
class HybridDrawing:
    """How tokens are drawn, and where the most likely one is taken instead."""

    temperature: Annotated[float, typer.Option(min=0.0, help="Below 1 is safer, 0 takes the most likely token.")] = 1.0
    top_k: Annotated[int | None, typer.Option(min=1, help="Draw among the k most likely tokens.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw among the tokens that make up this mass, in (0, 1].")] = None
    min_p: Annotated[
        float | None, typer.Option(help="Cut tokens below this share of the most likely one's probability, in [0, 1].")
    ] = None
    greedy_tail: Annotated[
        float | None, typer.Option(help="Take the most likely token in this last fraction of the calls, in [0, 1].")
    ] = None
    greedy_above: Annotated[
        float | None, typer.Option(help="Take the most likely token where it is likelier than this, in [0, 1].")
    ] = None

    def rule(self) -> TokenRule:
        """What is asked for, as samplers take it."""
        from unmask.wishes import token_rule

        return token_rule(**asdict(self))
