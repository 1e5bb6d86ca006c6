"""What a checkpoint was trained on, for evaluations that ask about just that."""

from __future__ import annotations

from typing import Any, TypeVar

from unmask.data.sources import Source
from unmask.errors import UnmaskError
from unmask.generation import MaskedDiffusionLM
from unmask.registry import build

S = TypeVar("S", bound=Source)


def trained_on(lm: MaskedDiffusionLM, kind: type[S], words: str, recipes: str) -> S:
    """The source of a checkpoint's training data, which must be of a kind; `words` for it and `recipes` that train on
    it are for the error otherwise."""
    described: dict[str, Any] = lm.card.protocol.get("data", {}).get("source", {})
    source = build("source", described) if described else None
    if isinstance(source, kind):
        return source
    was = f"was trained on the source '{described['name']}'" if described else "does not say what it was trained on"
    raise UnmaskError(f"The checkpoint '{lm.path}' {was}, not on {words}; make one with {recipes}.")
