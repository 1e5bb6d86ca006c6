"""The table of a contest: one row for each way to do the items, every share with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from unmask.evaluation.contests.ways import Rule, Way
from unmask.evaluation.generation.bootstrap import Estimate, ratio, resamples
from unmask.evaluation.generation.measures import Values
from unmask.generation import MaskedDiffusionLM

Z = 1.959964
"""A 95% interval reaches so many standard errors."""


@dataclass(frozen=True)
class Row:
    """One way and what came of it. `causal`: it was the twin's. `steps` is None for one token a call."""

    checkpoint: str
    way: str
    rule: Rule
    steps: int | None
    items: int
    sampler: dict[str, Any]
    figures: dict[str, Estimate]
    causal: bool = False
    adaptive: bool = False

    @classmethod
    def of(cls, lm: MaskedDiffusionLM, way: Way, items: int, figures: dict[str, Estimate], **more: Any) -> Self:
        """The row of a model's way through so many items."""
        sampler = way.on(lm)
        return cls(
            checkpoint=Path(str(lm.path)).name,
            way="ar" if lm.causal else way.name,
            rule=way.rule,
            steps=way.steps,
            items=items,
            sampler=sampler.model_dump(mode="json"),
            figures=figures,
            causal=lm.causal,
            adaptive=sampler.adaptive,
            **more,
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        about = {name: value for name, value in vars(self).items() if name != "figures"}
        return {**about, **{name: one.as_dict() for name, one in self.figures.items()}}


def wilson(right: Values) -> Estimate:
    """A share of n yes-or-no answers and Wilson's interval, which is honest near 0 and 1 too."""
    n, share = len(right), float(right.mean())
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    reach = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return Estimate(share, max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach)))


def pooled(right: Values, asked: Values) -> Estimate:
    """The share of right ones among all that items ask for, with a bootstrap's interval over items."""
    share = ratio(right, asked, resamples(len(asked)))
    assert share is not None
    return share


def costs(calls: Values, seconds: Values) -> dict[str, Estimate]:
    """Calls and seconds an item."""
    return {"calls": Estimate(float(calls.mean())), "seconds": Estimate(float(seconds.mean()))}
