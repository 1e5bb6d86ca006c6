"""The ways in which items are done: an order or a sampler, a token rule, a number of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from unmask.errors import UnmaskError, did_you_mean
from unmask.generation import MaskedDiffusionLM
from unmask.samplers.base import Sampler
from unmask.samplers.choice import Spec
from unmask.samplers.draws import TokenRule

ORDERS = ("uniform", "left_to_right", "confidence", "margin", "entropy", "threshold")
Rule = Literal["greedy", "stochastic"]
RULES: dict[Rule, TokenRule] = {"greedy": TokenRule(temperature=0.0), "stochastic": TokenRule()}
AT_ONCE = {"cuda": 1024}
AT_ONCE_ELSEWHERE = 64


@dataclass(frozen=True)
class Way:
    """How items are done: an order by its name or any sampler, a token rule, a number of steps."""

    rule: Rule = "greedy"
    order: str | None = None
    sampler: Spec | None = None
    steps: int | None = None

    @property
    def name(self) -> str:
        """What to call it beside other ways."""
        if self.order is not None:
            return self.order
        return str(self.sampler["name"] if isinstance(self.sampler, Mapping) else self.sampler or "reveal")

    def on(self, lm: MaskedDiffusionLM) -> Sampler:
        """The sampler that this is; a model that reads from left to right has but one."""
        return lm.sampler() if lm.causal else lm.sampler(self.steps, self.order, self.sampler)


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


def at_once(lm: MaskedDiffusionLM, batch_size: int | None) -> int:
    """How many items a model does at a time, unless told."""
    return batch_size or AT_ONCE.get(lm.device.type, AT_ONCE_ELSEWHERE)
