"""`GenerationConfig`: the options of `generate`, `fill`, `edit`, `rewrite` and `stream`, validated once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from inspect import signature
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError, model_validator

from unmask.constraints import Constraint, as_constraints
from unmask.errors import UnmaskError, did_you_mean
from unmask.random import MAX_SEED, MIN_SEED
from unmask.registry import explain
from unmask.samplers.token_sampling import TokenSampler

if TYPE_CHECKING:
    from unmask.samplers.base import Sampler

Constraints = Constraint | Sequence[Constraint] | None

MAX_COUNT = 1_000_000
"""Largest number of texts, of tokens in a text, or of particles."""

# Strict types that also take the scalars of numpy and torch.
Integer = Annotated[int, BeforeValidator(lambda value: value.__index__() if hasattr(value, "__index__") else value)]
Number = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, Real) else value)]


class GenerationConfig(BaseModel):
    """The options of generation.

    `temperature` to `greedy_above` are the options of a `TokenSampler`, which may be given as `rule` instead. Every
    text satisfies the `constraint`. `guidance` is the weight of classifier-free guidance on the prompt. `score`, a
    function of a text, selects the best of `best_of` texts or weights `particles`. Texts longer than the model are
    generated in windows, each `stride` tokens after the last one (default: half of the model's length). `steps`,
    `order` and `sampler` select the sampler; sequence i has the seed `seed + i`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True)

    temperature: Number = 1.0
    top_k: Integer | None = None
    top_p: Number | None = None
    min_p: Number | None = None
    greedy_tail: Number | None = None
    greedy_above: Number | None = None
    rule: InstanceOf[TokenSampler] | None = None
    constraint: Any = None
    particles: Integer = Field(default=1, ge=1, le=MAX_COUNT)
    guidance: Number = Field(default=0.0, ge=0, allow_inf_nan=False)
    best_of: Integer = Field(default=1, ge=1, le=MAX_COUNT)
    score: Callable[[str], float] | None = None
    stride: Integer | None = Field(default=None, ge=1)
    steps: Any = None
    order: Any = None
    sampler: Any = None
    seed: Integer = Field(default=0, ge=MIN_SEED, le=MAX_SEED)
    batch_size: Integer | None = Field(default=None, ge=1)

    @classmethod
    def select(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a method that are fields of the config."""
        return {name: value for name, value in arguments.items() if name in cls.model_fields}

    @classmethod
    def parse(cls, options: dict[str, Any], method: Callable[..., Any]) -> GenerationConfig:
        """Validate the options of a method; an unknown name is answered with the closest one of both."""
        known = set(cls.model_fields)
        for name in options:
            if name not in known:
                own = {one.name for one in signature(method).parameters.values() if one.kind is not one.VAR_KEYWORD}
                raise UnmaskError(f"There is no option '{name}'.{did_you_mean(name, known | own - {'self'})}")
        try:
            return cls(**options)
        except ValidationError as error:
            raise UnmaskError(explain(error)) from error

    @model_validator(mode="after")
    def _check_combinations(self) -> GenerationConfig:
        if self.rule is not None and self.token_options != TokenSampler().model_dump():
            raise UnmaskError("rule replaces temperature, top_k, top_p and so on; give one or the other.")
        try:
            self.token_sampler  # noqa: B018  (validates the options)
        except ValidationError as error:
            raise UnmaskError(explain(error)) from error
        if self.constraint is not None:
            as_constraints(self.constraint)
        if self.score is None and self.best_of > 1:
            raise UnmaskError(f"best_of={self.best_of} needs a score to compare the texts; give score=.")
        if self.best_of > 1 and self.particles > 1:
            raise UnmaskError("score selects the best of several texts or weights particles; give one of them.")
        if self.score is not None and self.best_of == self.particles == 1:
            raise UnmaskError("score needs several texts to compare; give best_of= or particles= above 1.")
        return self

    def check_sampler(self, sampler: Sampler, length: int, max_length: int) -> None:
        """Raise `UnmaskError` if `sampler` cannot write rows of `length` tokens with these options.

        `max_length` is the number of tokens that the model sees at once.
        """
        constrained, scored = self.constraint is not None, self.score is not None
        if sampler.causal:
            if self.stride is not None:
                raise UnmaskError(
                    f"An autoregressive model does not generate in windows; leave out stride={self.stride}."
                )
            if length > max_length:
                raise UnmaskError(f"length must be at most {max_length} for this autoregressive model, got {length}.")
            for option, given in {
                "a constraint": constrained,
                "guidance": self.guidance > 0,
                "particles": self.particles > 1,
            }.items():
                if given:
                    raise UnmaskError(
                        f"An autoregressive model cannot use {option}; use a masked model, which sees its whole canvas."
                    )
            return
        if self.stride is not None and self.stride > max_length:
            raise UnmaskError(f"stride must be from 1 to {max_length}, the length of the model, got {self.stride}.")
        if self.particles > 1:
            if constrained == scored:
                raise UnmaskError(
                    f"particles={self.particles} needs a constraint or a score to weight them, and only one of them."
                )
            if not sampler.can_resample:
                raise UnmaskError(f"The sampler {type(sampler).__name__} does not support particles; use particles=1.")
            if self.token_sampler.temperature == 0:
                raise UnmaskError(
                    "particles are all the same at temperature 0; use a higher temperature or particles=1."
                )
        if length > max_length and (constrained or self.particles > 1):
            raise UnmaskError(
                f"A constraint or score applies to a canvas that the model sees at once; length must be at most "
                f"{max_length}, got {length}."
            )

    @property
    def token_options(self) -> dict[str, Any]:
        """The options of a `TokenSampler` by name."""
        return {name: getattr(self, name) for name in TokenSampler.model_fields}

    @cached_property
    def token_sampler(self) -> TokenSampler:
        """How tokens are drawn from logits."""
        return self.rule or TokenSampler(**self.token_options)

    def with_constraints(self, others: Sequence[Constraint]) -> GenerationConfig:
        """The same config with further constraints."""
        own = [] if self.constraint is None else as_constraints(self.constraint)
        return self.model_copy(update={"constraint": [*own, *others] or None})

    def score_text(self, text: str) -> float:
        """The score of a text, which must be a finite number."""
        value: Any = self.score(text) if self.score is not None else None
        if not hasattr(value, "__float__") or not math.isfinite(value):
            raise UnmaskError(f"score must return a finite number, got {value!r} for {text[:40]!r}.")
        return float(value)


def check_count(name: str, value: Any) -> None:
    """Raise `UnmaskError` unless a value is an integer from 1 to `MAX_COUNT`."""
    if not hasattr(value, "__index__"):
        raise UnmaskError(f"{name} must be an integer, got {value!r}.")
    if not 1 <= value <= MAX_COUNT:
        raise UnmaskError(f"{name} must be from 1 to {MAX_COUNT}, got {value}.")


def greedy_temperature(greedy: bool, temperature: float) -> float:
    """Temperature 0 if `greedy`, which excludes another temperature."""
    if greedy and temperature not in (0, 1):
        raise UnmaskError(f"greedy means temperature=0, got temperature={temperature}; give one of them.")
    return 0.0 if greedy else temperature
