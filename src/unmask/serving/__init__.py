"""The HTTP API: a scheduler that shares network calls between requests, and the endpoints."""

from __future__ import annotations

import os
from pathlib import Path

from unmask.errors import UnmaskError


def name_checkpoints(given: list[str]) -> dict[str, str]:
    """Checkpoints by the names under which they are served."""
    from unmask.checkpoint import find_checkpoint  # transformers is imported only when it is needed

    named: dict[str, str] = {}
    for one in given:
        name, separator, checkpoint = one.partition("=")
        if not separator or os.path.exists(one):
            name, checkpoint = Path(one).name, one
        if not name or name in named:
            raise UnmaskError(
                f"Two checkpoints have the name '{name}'; give one another name, as in other={checkpoint}."
            )
        find_checkpoint(checkpoint)
        named[name] = checkpoint
    return named
