"""One model, perhaps its twin, the same blanks in held-out functions, and several ways to fill them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.evaluation.code.blanks import SIZES, Blank, blanks_of, check_twin
from unmask.evaluation.code.filling import fill
from unmask.evaluation.code.report import Row, figures_of
from unmask.evaluation.code.syntax import Kind
from unmask.evaluation.contests.ways import Way
from unmask.evaluation.generation.bootstrap import LEVEL
from unmask.generation import MaskedDiffusionLM
from unmask.tally import Progress

COUNT = 500
"""How many functions are asked about for each kind of blank unless told, where there are as many."""


@dataclass
class Contest:
    """The blanks of each kind, and the rows of all who have filled them so far."""

    home: MaskedDiffusionLM
    """Whose tokens the blanks are."""
    blanks: dict[Kind, list[Blank]]
    seed: int = 0
    batch_size: int | None = None
    rows: list[Row] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        lm: MaskedDiffusionLM,
        kinds: Sequence[Kind] = tuple(SIZES),
        count: int = COUNT,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Contest:
        """Blanks in the held-out functions of what a model was trained on, at most `count` of each kind."""
        return cls(lm, {kind: blanks_of(lm, kind, count, seed) for kind in kinds}, seed, batch_size)

    @property
    def size(self) -> int:
        """Blanks of all kinds."""
        return sum(map(len, self.blanks.values()))

    def admit(self, lm: MaskedDiffusionLM) -> None:
        """Refuse a model that has learnt other functions, or the same as other tokens."""
        check_twin(self.home, lm)

    def enter(self, lm: MaskedDiffusionLM, ways: Sequence[Way], progress: Progress | None = None) -> None:
        """Let a model fill the blanks in each of the ways."""
        self.admit(lm)
        for kind, blanks in self.blanks.items():
            for way in ways:
                filled = fill(lm, blanks, way, self.seed, self.batch_size, progress)
                self.rows.append(Row.of(lm, way, len(blanks), figures_of(filled), kind=kind))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what was asked, and the rows."""
        counts = {kind: len(blanks) for kind, blanks in self.blanks.items()}
        return {
            "source": "functions",
            "blanks": counts,
            "seed": self.seed,
            "interval": {"level": LEVEL},
            "rows": [row.as_dict() for row in self.rows],
        }
