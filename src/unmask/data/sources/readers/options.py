"""What a user can say about how files are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """separator: how plain text is cut. field: where records keep their text. The sources say more about each."""

    separator: str | None = None
    field: str | None = None
    encoding_errors: str = "strict"
    reverse_complement: bool = False
