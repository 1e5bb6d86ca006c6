"""The laws on another device. They are written without one; here they are carried to a GPU as they stand."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unmask import registry
from unmask.registry import Component

AXES = ("schedule", "objective", "sampler", "model")
STEPS = (2, 4)
"""The numbers of steps in which members that have such an option are judged."""
KNOTS = (*((k + 2.5 * math.sin(k / 3) ** 2) / 66 for k in range(1, 64)), 1.0)
"""The bent knots in which members that have such an option are judged too."""


class LawBroken(AssertionError):
    """A law does not hold; the message holds the numbers."""


@dataclass(frozen=True)
class Check:
    """What a check measured: `figure` must be at most `limit` (a NaN never is)."""

    value: float
    limit: float
    description: str


@dataclass(frozen=True)
class LawResult:
    """The outcome of one law for one member."""

    name: str
    subject: str
    value: float
    limit: float
    description: str

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value <= self.limit

    def require(self) -> None:
        """Raise `LawBroken` where the law does not hold."""
        if not self.passed:
            raise LawBroken(str(self))

    def __str__(self) -> str:
        verdict = "holds" if self.passed else "BROKEN"
        return f"{self.subject}: {self.name} {verdict}: {self.description}: {self.value:.3g} (at most {self.limit:.3g})"


Law = Callable[[Any], Iterator[Check]]


@dataclass(frozen=True)
class Case:
    """One law and one member that it applies to."""

    name: str
    check: Law
    axis: str
    member: Any

    @property
    def subject(self) -> str:
        """The member as a person would write it."""
        return f"{self.axis} {describe(self.member)}"

    def __str__(self) -> str:
        return f"{self.subject}: {self.name}"

    def run(self) -> Iterator[LawResult]:
        """Every measurement of this law for this member."""
        for finding in self.check(self.member):
            yield LawResult(self.name, self.subject, finding.value, finding.limit, finding.description)

    def run_safely(self) -> Iterator[LawResult]:
        """The same; a check that cannot be made is a broken law."""
        try:
            yield from self.run()
        except Exception as error:
            yield LawResult(self.name, self.subject, math.inf, 0.0, f"{type(error).__name__}: {error}")


_CHECKS: dict[str, list[tuple[Law, Callable[[Any], bool]]]] = {axis: [] for axis in AXES}


def law(axis: str, when: Callable[[Any], bool] = lambda member: True) -> Callable[[Law], Law]:
    """Make a check a law of an axis, for those members of which `when` is true."""

    def add(check: Law) -> Law:
        _CHECKS[axis].append((check, when))
        return check

    return add


def survives_serialisation(axis: str) -> Law:
    """The law of every axis: a component written as JSON and read again is the same component."""

    def survives_its_way_through_json(member: Component) -> Iterator[Check]:
        again = registry.build(axis, json.loads(member.model_dump_json()))
        yield Check(float(again != member), 0, "differs after a round trip")

    return survives_its_way_through_json


for _axis in AXES:
    law(_axis)(survives_serialisation(_axis))


def cases(axis: str) -> list[Case]:
    """Every registered member of an axis, in every variant, with every law that applies to it."""
    return [case for member in members(axis) for case in cases_of(axis, member)]


def cases_of(axis: str, member: Any) -> list[Case]:
    """One member of an axis with every law that applies to it."""
    import_module(f"unmask.laws.{axis}s")
    names = [(check, check.__name__.replace("_", " ")) for check, when in _CHECKS[axis] if when(member)]
    return [Case(name, check, axis, member) for check, name in names]


def run(axes: tuple[str, ...] = AXES) -> Iterator[LawResult]:
    """Judge every registered member of the axes, one law after another. A check that cannot be made is a broken law."""
    for axis in axes:
        for case in cases(axis):
            yield from case.run_safely()


def members(axis: str) -> tuple[Any, ...]:
    """Every registered member of an axis, in every variant that its options allow."""
    return tuple(m for name in registry.names(axis) for m in variants(registry.get(axis, name), FIXED.get(axis, {})))


FIXED: dict[str, dict[str, Any]] = {
    "model": {"size": "nano", "hidden_size": 32, "layers": 2, "heads": 2, "cond_dim": 8, "dropout": 0.0}
}
"""Options that are the same in all variants: networks are judged small."""


def variants(component: type[Component], fixed: dict[str, Any]) -> Iterator[Component]:
    """A component with every combination of its switches, choices, steps and schedules; the rest by default.

    Schedules meet every number of steps, but not every choice beside it: that would be too many. One that cannot be
    without a value of ours (the path of a checkpoint) has none.
    """
    choices = {name: _choices(component, name) for name in component.model_fields if name not in fixed}
    if any(component.model_fields[name].is_required() for name in choices):
        return
    kept = {name: value for name, value in fixed.items() if name in component.model_fields}
    for values in itertools.product(*choices.values()):
        chosen = {name: value for name, value in zip(choices, values, strict=True) if value is not _DEFAULT}
        if not _is_exotic(component, chosen):
            yield component(**kept, **chosen)


def _is_exotic(component: type[Component], chosen: dict[str, Any]) -> bool:
    """Whether both the schedule and something beside it and the steps are other than by default."""
    other = {name for name, value in chosen.items() if value != component.model_fields[name].default}
    return "schedule" in other and bool(other - {"schedule", "steps"})


_DEFAULT = object()


def _choices(component: type[Component], name: str) -> tuple[Any, ...]:
    field = component.model_fields[name]
    if name == "steps":
        return (None, *STEPS) if type(None) in get_args(field.annotation) else STEPS
    if name == "knots":
        return (_DEFAULT, KNOTS)
    if name == "schedule":
        return members("schedule")
    if field.annotation is bool:
        return (False, True)
    if get_origin(field.annotation) is Literal:
        return get_args(field.annotation)
    return (_DEFAULT,)


def describe(member: Any) -> str:
    """A component by its name and the options that differ from their defaults."""
    fields = type(member).model_fields
    options = {k: getattr(member, k) for k in fields if k != "name" and getattr(member, k) != fields[k].default}
    words = [f"{k}={_describe_option(v)}" for k, v in options.items()]
    return f"{member.name}({', '.join(words)})" if words else member.name


def _describe_option(value: Any) -> str:
    if isinstance(value, Component):
        return describe(value)
    return f"({value[0]:.3g}, ...)" if isinstance(value, tuple) else str(value)


LEAST_EXPECTED = 5.0


def chi_square(counts: Tensor, law: Tensor) -> float:
    """The p-value of Pearson's test of counts [K] against a law [K]; rare outcomes are counted together.

    An outcome of probability 0 that was seen gives 0.
    """
    total = float(counts.sum())
    if bool((counts[law <= 0] > 0).any()):
        return 0.0
    expected = law * total
    rare = expected < LEAST_EXPECTED
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    kept = expected > 0
    statistic = ((counts - expected).square()[kept] / expected[kept]).sum()
    degrees = int(kept.sum()) - 1
    if degrees < 1:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor(degrees / 2, dtype=torch.float64), statistic / 2))


def deviations(samples: Tensor, value: float) -> float:
    """How many standard errors the mean of independent samples [R] is from a value."""
    error = float(samples.std()) / math.sqrt(len(samples))
    return abs(float(samples.mean()) - value) / max(error, 1e-12)


@contextmanager
def on_device(device: torch.device | str) -> Iterator[None]:
    """What is computed in this block is computed on a device: new tensors are made there, those of the CPU follow."""
    device = torch.device(device)
    if device.type == "cpu":
        yield
        return
    with device, _Gathering(device):
        yield


class _Gathering(TorchFunctionMode):
    """Every operation finds its tensors on one device. Only random numbers are made where their generator lives."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = {name: self._here(value) for name, value in (kwargs or {}).items()}
        if options.get("generator") is not None:
            options.setdefault("device", options["generator"].device)
        return function(*map(self._here, args), **options)

    def _here(self, argument: Any) -> Any:
        # by hand, since pytree takes longer than the operations of the laws themselves
        if isinstance(argument, Tensor):
            return argument.to(self.device) if argument.device.type != self.device.type else argument
        if type(argument) in (list, tuple):
            return type(argument)(map(self._here, argument))
        return argument
