"""One model, perhaps its twin, the same held-out items, and several ways to solve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.data.rows import Rows
from unmask.data.sources.puzzle import PuzzleSource
from unmask.evaluation.contests.report import Row
from unmask.evaluation.contests.ways import Way
from unmask.evaluation.generation.bootstrap import LEVEL
from unmask.evaluation.puzzles.items import check_twin, held_out_items, puzzles_of, rows_of_items
from unmask.evaluation.puzzles.report import figures_of
from unmask.evaluation.puzzles.solving import solve
from unmask.generation import MaskedDiffusionLM
from unmask.tally import Progress


@dataclass
class Contest:
    """The items of a task, and the rows of all who have tried them so far."""

    source: PuzzleSource
    items: list[str]
    seed: int = 0
    batch_size: int | None = None
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def of(
        cls, lm: MaskedDiffusionLM, count: int | None = None, seed: int = 0, batch_size: int | None = None
    ) -> Contest:
        """The first `count` held-out items of what a model was trained on; 1,000 where there are as many."""
        source = puzzles_of(lm)
        return cls(source, held_out_items(source, count), seed, batch_size)

    @property
    def size(self) -> int:
        """How many items there are."""
        return len(self.items)

    def admit(self, lm: MaskedDiffusionLM) -> Rows:
        """The items as a model sees them; one that has learnt other puzzles is refused."""
        check_twin(self.source, lm)
        return rows_of_items(lm, self.items)

    def enter(self, lm: MaskedDiffusionLM, ways: Sequence[Way], progress: Progress | None = None) -> None:
        """Let a model solve the items in each of the ways."""
        rows = self.admit(lm)
        for way in ways:
            solved = solve(lm, self.source, rows, way, self.seed, self.batch_size, progress)
            self.rows.append(Row.of(lm, way, len(self.items), figures_of(solved)))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what was asked, and the rows."""
        asked = {"source": self.source.model_dump(mode="json"), "items": len(self.items), "seed": self.seed}
        return {**asked, "interval": {"level": LEVEL}, "rows": [row.as_dict() for row in self.rows]}
