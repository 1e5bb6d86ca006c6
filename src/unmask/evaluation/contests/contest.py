"""What every contest can do, whatever its items are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from unmask.evaluation.contests.ways import Way
from unmask.generation import MaskedDiffusionLM
from unmask.tally import Progress


class Contest(Protocol):
    """Items that models do, one model after the other."""

    @property
    def size(self) -> int:
        """How many items there are."""

    def admit(self, lm: MaskedDiffusionLM) -> object:
        """Refuse a model to which these items are not the same."""

    def enter(self, lm: MaskedDiffusionLM, ways: Sequence[Way], progress: Progress | None = None) -> None:
        """Let a model do the items in each of the ways."""
