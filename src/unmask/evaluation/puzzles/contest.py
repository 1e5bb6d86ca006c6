"""One model, perhaps its twin, the same held-out items, and several ways to solve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.data.rows import Rows
from unmask.data.sources.puzzle import PuzzleSource
from unmask.errors import UnmaskError, did_you_mean
from unmask.evaluation.generation.bootstrap import LEVEL
from unmask.evaluation.puzzles.items import check_twin, held_out_items, puzzles_of, rows_of_items
from unmask.evaluation.puzzles.report import Row, figures_of
from unmask.evaluation.puzzles.solving import RULES, Rule, Way, solve
from unmask.generation import MaskedDiffusionLM
from unmask.samplers.choice import Spec
from unmask.tally import Progress

ORDERS = ("uniform", "left_to_right", "confidence", "margin", "entropy", "threshold")


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


def ways_of(
    lm: MaskedDiffusionLM,
    orders: Sequence[str],
    samplers: Sequence[Spec],
    rules: Sequence[Rule],
    steps: Sequence[int | None],
) -> list[Way]:
    """Every combination that makes sense for a model: an order that adapts has no number of steps, a twin no order."""
    if lm.causal:
        return [Way(rule) for rule in rules]
    bare = [Way(order=order) for order in orders] + [Way(sampler=sampler) for sampler in samplers]
    counted = [replace(way, steps=n) for way in bare for n in ([None] if way.on(lm).adaptive else steps)]
    return [replace(way, rule=rule) for rule in rules for way in counted]


def parse_rules(words: Sequence[str]) -> list[Rule]:
    """Token rules as a user writes them."""
    for word in words:
        if word not in RULES:
            raise UnmaskError(f"There is no token rule '{word}'.{did_you_mean(word, RULES)}")
    return [rule for rule in RULES if rule in words]
