"""Laws and their results, the members and variants they are checked on, test statistics, and laws on a GPU.

A law is a function from a member of an axis to `Check`s, decorated with `@law(axis)`. Users see its name with spaces
for underscores.
"""

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
"""The values of `steps` that are checked, for members with this option."""
KNOTS = (*((k + 2.5 * math.sin(k / 3) ** 2) / 66 for k in range(1, 64)), 1.0)
"""The knots that are checked besides the default, for members with this option."""
FIXED_OPTIONS: dict[str, dict[str, Any]] = {
    "model": {
        "size": "nano",
        "hidden_size": 32,
        "layers": 2,
        "encoder_layers": 1,
        "heads": 2,
        "cond_dim": 8,
        "dropout": 0.0,
    },
    "sampler": {"size": 2},
}
"""Options with the same value in all variants: models are small, and blocks of a sampler smaller than the canvas."""
MIN_EXPECTED = 5.0
_DEFAULT = object()


# ---- results --------------------------------------------------------------------------------------------------------


class LawBroken(AssertionError):
    """A law does not hold; the message contains the numbers."""


@dataclass(frozen=True)
class Check:
    """One measurement: `value` must be at most `limit` (NaN never is)."""

    value: float
    limit: float
    description: str


@dataclass(frozen=True)
class LawResult:
    """One check of one law for one member."""

    name: str
    subject: str
    value: float
    limit: float
    description: str

    @property
    def passed(self) -> bool:
        return self.value <= self.limit

    def require(self) -> None:
        """Raise `LawBroken` unless the law holds."""
        if not self.passed:
            raise LawBroken(str(self))

    def __str__(self) -> str:
        verdict = "holds" if self.passed else "BROKEN"
        return f"{self.subject}: {self.name} {verdict}: {self.description}: {self.value:.3g} (at most {self.limit:.3g})"


# ---- laws and cases -------------------------------------------------------------------------------------------------

Law = Callable[[Any], Iterator[Check]]

_LAWS: dict[str, list[tuple[Law, Callable[[Any], bool]]]] = {axis: [] for axis in AXES}


def law(axis: str, when: Callable[[Any], bool] = lambda member: True) -> Callable[[Law], Law]:
    """Register a law of an axis, for the members for which `when` is true."""

    def add(function: Law) -> Law:
        _LAWS[axis].append((function, when))
        return function

    return add


for _axis in AXES:

    @law(_axis)
    def survives_a_json_round_trip(member: Component, axis: str = _axis) -> Iterator[Check]:
        """A component written as JSON and read again is the same component."""
        again = registry.build(axis, json.loads(member.model_dump_json()))
        yield Check(float(again != member), 0, "differs after a round trip")


@dataclass(frozen=True)
class Case:
    """One law and one member that it applies to."""

    name: str
    law: Law
    axis: str
    member: Any

    @property
    def subject(self) -> str:
        """The axis and the member with its options."""
        return f"{self.axis} {describe(self.member)}"

    def __str__(self) -> str:
        return f"{self.subject}: {self.name}"

    def run(self) -> Iterator[LawResult]:
        for check in self.law(self.member):
            yield LawResult(self.name, self.subject, check.value, check.limit, check.description)

    def run_safely(self) -> Iterator[LawResult]:
        """`run`, with an exception reported as a broken law."""
        try:
            yield from self.run()
        except Exception as error:
            yield LawResult(self.name, self.subject, math.inf, 0.0, f"{type(error).__name__}: {error}")


def cases(axis: str) -> list[Case]:
    """Every registered member of an axis, in every variant, with every law that applies to it."""
    return [case for member in members(axis) for case in cases_of(axis, member)]


def cases_of(axis: str, member: Any) -> list[Case]:
    """One member of an axis with every law that applies to it."""
    import_module(f"unmask.laws.{axis}s")
    chosen = [function for function, when in _LAWS[axis] if when(member)]
    return [Case(function.__name__.replace("_", " "), function, axis, member) for function in chosen]


def run(axes: tuple[str, ...] = AXES) -> Iterator[LawResult]:
    """Check every registered member of the axes; an exception is reported as a broken law."""
    for axis in axes:
        for case in cases(axis):
            yield from case.run_safely()


# ---- members and variants -------------------------------------------------------------------------------------------


def members(axis: str) -> tuple[Any, ...]:
    """Every registered member of an axis, in every variant."""
    fixed = FIXED_OPTIONS.get(axis, {})
    return tuple(member for name in registry.names(axis) for member in variants(registry.get(axis, name), fixed))


def variants(component: type[Component], fixed: dict[str, Any]) -> Iterator[Component]:
    """A component with every combination of its switches, choices, steps and schedules, and defaults for the rest.

    To limit their number, other schedules are combined only with `steps`. A component with a required option, such as
    the path of a checkpoint, has no variants.
    """
    fields = component.model_fields
    choices = {name: _choices(component, name) for name in fields if name not in fixed}
    if any(fields[name].is_required() for name in choices):
        return
    kept = {name: value for name, value in fixed.items() if name in fields}
    for values in itertools.product(*choices.values()):
        chosen = {name: value for name, value in zip(choices, values, strict=True) if value is not _DEFAULT}
        changed = {name for name, value in chosen.items() if value != fields[name].default}
        if "schedule" not in changed or changed <= {"schedule", "steps"}:
            yield component(**kept, **chosen)


def _choices(component: type[Component], name: str) -> tuple[Any, ...]:
    annotation = component.model_fields[name].annotation
    if name == "steps":
        return (None, *STEPS) if type(None) in get_args(annotation) else STEPS
    if name == "knots":
        return (_DEFAULT, KNOTS)
    if name == "schedule":
        return members("schedule")
    if annotation is bool:
        return (False, True)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return (_DEFAULT,)


def describe(member: Any) -> str:
    """A component as its name and the options that differ from their defaults."""
    fields = type(member).model_fields
    options = {k: getattr(member, k) for k in fields if k != "name" and getattr(member, k) != fields[k].default}
    parts = []
    for name, value in options.items():
        if isinstance(value, Component):
            value = describe(value)
        elif isinstance(value, tuple):
            value = f"({value[0]:.3g}, ...)"
        parts.append(f"{name}={value}")
    return f"{member.name}({', '.join(parts)})" if parts else member.name


# ---- statistics -----------------------------------------------------------------------------------------------------


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """The p-value of Pearson's test of counts [K] against probabilities [K], with rare outcomes pooled.

    It is 0 if an outcome of probability 0 occurred.
    """
    total = float(counts.sum())
    if bool((counts[probabilities <= 0] > 0).any()):
        return 0.0
    expected = probabilities * total
    rare = expected < MIN_EXPECTED
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    kept = expected > 0
    statistic = ((counts - expected).square()[kept] / expected[kept]).sum()
    degrees = int(kept.sum()) - 1
    if degrees < 1:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor(degrees / 2, dtype=torch.float64), statistic / 2))


def z_score(samples: Tensor, value: float) -> float:
    """The distance of the mean of independent samples [R] from a value in standard errors."""
    error = float(samples.std()) / math.sqrt(len(samples))
    return abs(float(samples.mean()) - value) / max(error, 1e-12)


def max_abs(difference: Tensor) -> float:
    """The largest absolute value."""
    return float(difference.abs().max())


# ---- laws on a GPU --------------------------------------------------------------------------------------------------


@contextmanager
def on_device(device: torch.device | str) -> Iterator[None]:
    """Run everything in this block on a device: new tensors are created there, and CPU tensors are moved there."""
    device = torch.device(device)
    if device.type == "cpu":
        yield
        return
    with device, _MoveToDevice(device):
        yield


class _MoveToDevice(TorchFunctionMode):
    """Move the tensor arguments of every operation to one device; random numbers stay on the generator's device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = {name: self._move(value) for name, value in (kwargs or {}).items()}
        if options.get("generator") is not None:
            options.setdefault("device", options["generator"].device)
        return function(*map(self._move, args), **options)

    def _move(self, argument: Any) -> Any:
        # without pytree, which takes longer than the operations of the laws
        if isinstance(argument, Tensor):
            return argument.to(self.device) if argument.device.type != self.device.type else argument
        if type(argument) in (list, tuple):
            return type(argument)(map(self._move, argument))
        return argument
