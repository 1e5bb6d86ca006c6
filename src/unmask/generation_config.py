"""What a user may ask of texts, in the user's words, and the sentences for what cannot be asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from inspect import signature
from numbers import Real
from typing import Any

from unmask.constraints import Constraint, as_constraints
from unmask.errors import UnmaskError, did_you_mean
from unmask.samplers.token_sampling import TokenSampler

Constraints = Constraint | Sequence[Constraint] | None
TextScore = Callable[[str], float]

LARGEST_SEED = 2**63 - 1
MOST = 1_000_000
"""Texts, tokens of a text, or walks of one that can be asked for at once."""


@dataclass(frozen=True)
class GenerationConfig:
    """What a user asks of texts. Every text satisfies the `constraint`; with `guidance` it holds closer to its prompt.

    `score`, any function of a text, chooses the `best_of` several or weighs `particles`. Texts longer than the model
    are written in windows, each `stride` tokens behind the one before (half of the model's length).
    """

    rule: TokenSampler = field(default_factory=TokenSampler)
    constraint: Constraints = None
    particles: int = 1
    guidance: float = 0.0
    best_of: int = 1
    score: TextScore | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        check_whole(particles=self.particles, best_of=self.best_of)
        check_whole_if_given(stride=self.stride)
        check_most(particles=self.particles, best_of=self.best_of)
        check_numbers(guidance=self.guidance)
        if self.constraint is not None:
            as_constraints(self.constraint)
        if self.score is not None and not callable(self.score):
            raise UnmaskError(f"score={self.score!r} is no function; give one that makes a number of a text.")
        if self.best_of < 1:
            raise UnmaskError(f"best_of={self.best_of} chooses among nothing; give at least 1.")
        if self.best_of > 1 and self.score is None:
            raise UnmaskError(f"best_of={self.best_of} needs a score to choose by; give score=, a function of a text.")
        if self.best_of > 1 and self.particles > 1:
            raise UnmaskError("A score chooses the best of several texts or weighs particles; give one of them.")
        if self.score is not None and self.best_of == self.particles == 1:
            raise UnmaskError("A score needs several texts to compare; give best_of= or particles= above 1.")

    @classmethod
    def of(cls, asked: dict[str, Any], verb: Callable[..., Any]) -> GenerationConfig:
        """The wish of a user who may say `temperature=` and the other words of a token rule, or give the `rule=`.

        `verb` is what was asked so: a word that is none is told beside its own options.
        """
        _check_names(asked, verb)
        words = {name: value for name, value in asked.items() if name == "rule" or name in TokenSampler.model_fields}
        return cls(rule=token_rule(**words), **{name: value for name, value in asked.items() if name not in words})

    def score_of(self, text: str) -> float:
        """What the score says of a text."""
        said: Any = None if self.score is None else self.score(text)
        try:
            value = float(said) if hasattr(said, "__float__") else math.nan
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise UnmaskError(f"The score of {text[:40]!r} is {said}; return a finite number.")
        return value


def together(asked: Constraints, others: Sequence[Constraint]) -> Constraints:
    """What a user asks for, and some things more."""
    if not others or asked is None:
        return others or asked
    return [*as_constraints(asked), *others]


def check_whole(**numbers: Any) -> None:
    """Whether numbers that count something are whole ones."""
    for name, value in numbers.items():
        if not hasattr(value, "__index__"):
            raise UnmaskError(f"{name}={value!r} is no whole number; give one.")


def check_whole_if_given(**numbers: Any) -> None:
    """Whether numbers that count something are whole ones or None."""
    check_whole(**_given(numbers))


def check_most(**numbers: int) -> None:
    """Whether not more is asked for than a machine can hold."""
    for name, value in numbers.items():
        if value > MOST:
            raise UnmaskError(f"{name}={value} is more than can be written at once; give at most {MOST}.")


def check_numbers(**numbers: Any) -> None:
    """Whether numbers are such."""
    for name, value in numbers.items():
        if not isinstance(value, Real):
            raise UnmaskError(f"{name}={value!r} is no number; give one.")


def check_batch_size(batch_size: int | None) -> None:
    """Whether so many sequences can be written at a time."""
    check_whole_if_given(batch_size=batch_size)
    if batch_size is not None and batch_size < 1:
        raise UnmaskError(f"batch_size={batch_size} writes nothing at a time; give at least 1, or leave it out.")


def check_seeds(seed: int, count: int = 1) -> None:
    """Whether as many seeds from this one on are ones that random numbers can be made of."""
    check_whole(seed=seed)
    if not -LARGEST_SEED - 1 <= seed <= LARGEST_SEED - count + 1:
        raise UnmaskError(f"seed={seed} leaves no room for {count} of 64 bits, sign included; give a smaller number.")


def cooled(greedy: bool, temperature: float) -> float:
    """The temperature of a user who may say `greedy`, which is 0."""
    if greedy and temperature not in (0, 1):
        raise UnmaskError(f"greedy is temperature 0, and temperature={temperature} is another; give one of them.")
    return 0.0 if greedy else temperature


def token_rule(
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    greedy_tail: float | None = None,
    greedy_above: float | None = None,
    rule: TokenSampler | None = None,
) -> TokenSampler:
    """How tokens are chosen, from the words of a user, or by a `rule` that is one already; temperature 0 is greedy."""
    check_numbers(temperature=temperature)
    hybrid = {"min_p": min_p, "greedy_tail": greedy_tail, "greedy_above": greedy_above}
    check_numbers(**_given({"top_p": top_p, **hybrid}))
    check_whole_if_given(top_k=top_k)
    if not 0 <= temperature < float("inf"):
        raise UnmaskError(f"temperature={temperature} is not possible; give 0 (greedy) or a positive number.")
    if top_k is not None and top_k < 1:
        raise UnmaskError(f"top_k={top_k} leaves no token; give at least 1.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UnmaskError(f"top_p={top_p} is not a probability mass; give a number above 0 and at most 1.")
    if min_p is not None and not 0 <= min_p <= 1:
        raise UnmaskError(f"min_p={min_p} is no share of the likeliest token's probability; give one from 0 to 1.")
    if greedy_tail is not None and not 0 <= greedy_tail <= 1:
        raise UnmaskError(f"greedy_tail={greedy_tail} is no fraction of the calls; give a number from 0 to 1.")
    if greedy_above is not None and not 0 <= greedy_above <= 1:
        raise UnmaskError(f"greedy_above={greedy_above} is no probability; give a number from 0 to 1.")
    said = TokenSampler(temperature=temperature, top_k=top_k, top_p=top_p, **hybrid)
    if rule is not None and not isinstance(rule, TokenSampler):
        raise UnmaskError(
            f"rule={rule!r} is no rule; give a TokenSampler of unmask.samplers.token_sampling, or temperature=."
        )
    if rule is not None and said != TokenSampler():
        raise UnmaskError("A rule says all of how tokens are drawn; give rule= alone, or temperature= and so on.")
    return rule or said


def _check_names(asked: Iterable[str], verb: Callable[..., Any]) -> None:
    """Whether all of these are words of a wish."""
    known = {one.name for one in fields(GenerationConfig)} | set(TokenSampler.model_fields)
    strange = next((name for name in asked if name not in known), None)
    if strange is not None:
        own = {name for name, one in signature(verb).parameters.items() if one.kind is not one.VAR_KEYWORD}
        raise UnmaskError(f"There is no option '{strange}'.{did_you_mean(strange, known | own)}")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
