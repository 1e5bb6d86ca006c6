"""What contests share: a model and perhaps its twin do the same items in several ways, a row tells of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from typing_extensions import Self

from unmask.errors import UnmaskError, did_you_mean
from unmask.evaluation.statistics import Estimate, Values, ratio, resamples
from unmask.likelihood import Progress
from unmask.pipeline import MaskedDiffusionLM
from unmask.plots.tasks import Contender, Trial
from unmask.samplers.base import Sampler
from unmask.samplers.options import SamplerSpec
from unmask.samplers.token_sampling import TokenSampler

ORDERS = ("uniform", "left_to_right", "confidence", "margin", "entropy", "threshold")
Rule = Literal["greedy", "stochastic"]
RULES: dict[Rule, TokenSampler] = {"greedy": TokenSampler(temperature=0.0), "stochastic": TokenSampler()}
AT_ONCE = {"cuda": 1024}
AT_ONCE_ELSEWHERE = 64


@dataclass(frozen=True)
class Strategy:
    """How items are done: an order by its name or any sampler, a token rule, a number of steps."""

    rule: Rule = "greedy"
    order: str | None = None
    sampler: SamplerSpec | None = None
    steps: int | None = None

    @property
    def name(self) -> str:
        """What to call it beside other ways."""
        if self.order is not None:
            return self.order
        return str(self.sampler["name"] if isinstance(self.sampler, Mapping) else self.sampler or "ancestral")

    def on(self, lm: MaskedDiffusionLM) -> Sampler:
        """The sampler that this is; a model that reads from left to right has but one."""
        return lm.sampler() if lm.causal else lm.sampler(self.steps, self.order, self.sampler)


def ways_of(
    lm: MaskedDiffusionLM,
    orders: Sequence[str],
    samplers: Sequence[SamplerSpec],
    rules: Sequence[Rule],
    steps: Sequence[int | None],
) -> list[Strategy]:
    """Every combination that makes sense for a model: an order that adapts has no number of steps, a twin no order."""
    if lm.causal:
        return [Strategy(rule) for rule in rules]
    bare = [Strategy(order=order) for order in orders] + [Strategy(sampler=sampler) for sampler in samplers]
    counted = [replace(way, steps=n) for way in bare for n in ([None] if way.on(lm).adaptive else steps)]
    return [replace(way, rule=rule) for rule in rules for way in counted]


def parse_rules(words: Sequence[str]) -> list[Rule]:
    """Token rules as a user writes them."""
    for word in words:
        if word not in RULES:
            raise UnmaskError(f"There is no token rule '{word}'.{did_you_mean(word, RULES)}")
    return [rule for rule in RULES if rule in words]


def at_once(lm: MaskedDiffusionLM, batch_size: int | None) -> int:
    """How many items a model does at a time, unless told."""
    return batch_size or AT_ONCE.get(lm.device.type, AT_ONCE_ELSEWHERE)


class TaskEvaluation(Protocol):
    """Items that models do, one model after the other."""

    @property
    def size(self) -> int:
        """How many items there are."""

    def admit(self, lm: MaskedDiffusionLM) -> object:
        """Refuse a model to which these items are not the same."""

    def enter(self, lm: MaskedDiffusionLM, ways: Sequence[Strategy], progress: Progress | None = None) -> None:
        """Let a model do the items in each of the ways."""


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
    def of(cls, lm: MaskedDiffusionLM, way: Strategy, items: int, figures: dict[str, Estimate], **more: Any) -> Self:
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


def contenders(rows: Iterable[Row], rate: str) -> list[Contender]:
    """Rows of one model, way and rule become one line of a rate."""
    found: dict[tuple[bool, str, str], list[Trial]] = {}
    for row in rows:
        found.setdefault((row.causal, row.way, row.rule), []).append(_trial(row, rate))
    return [
        Contender("AR twin" if causal else way, rule, trials, causal) for (causal, way, rule), trials in found.items()
    ]


def _trial(row: Row, rate: str) -> Trial:
    share = row.figures[rate]
    assert share.low is not None
    assert share.high is not None
    return Trial(row.figures["calls"].value, (share.value, share.low, share.high))
