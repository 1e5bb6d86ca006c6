"""The members of every axis, by name. A member is one class and one line here; it is imported only when asked for.

A component travels as ``{name: polynomial, power: 2}`` (or just its name) in recipes, in ``unmask.json`` and in result
files, and is validated by its own class.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny, ValidationError

from unmask.errors import UnmaskError, did_you_mean

AXES: dict[str, dict[str, str | type]] = {
    "schedule": {
        "loglinear": "unmask.schedules:LogLinear",
        "cosine": "unmask.schedules:Cosine",
        "cosine-squared": "unmask.schedules:CosineSquared",
        "linear-sigma": "unmask.schedules:LinearSigma",
        "geometric": "unmask.schedules:Geometric",
        "polynomial": "unmask.schedules:Polynomial",
        "learned": "unmask.schedules:Learned",
    },
    "objective": {
        "subs": "unmask.objectives.subs:Subs",
        "mask-count": "unmask.objectives.subs:MaskCount",
        "d3pm": "unmask.objectives.d3pm:D3PM",
        "sedd": "unmask.objectives.sedd:SEDD",
        "ar": "unmask.objectives.autoregressive:AR",
        "planner": "unmask.objectives.planner:Planner",
    },
    "sampler": {
        "ancestral": "unmask.samplers.ancestral:AncestralSampler",
        "analytic": "unmask.samplers.analytic:AnalyticSampler",
        "ar": "unmask.samplers.autoregressive:AutoregressiveSampler",
        "ordered": "unmask.samplers.ordered:OrderedSampler",
        "threshold": "unmask.samplers.ordered:ThresholdSampler",
        "entropy_bounded": "unmask.samplers.ordered:EntropyBoundedSampler",
        "remdm": "unmask.samplers.remasking:ReMDMSampler",
        "corrector": "unmask.samplers.remasking:CorrectorSampler",
    },
    "model": {
        "dit": "unmask.models.build:DiTSpec",
        "causal": "unmask.models.build:CausalSpec",
        "checkpoint": "unmask.models.build:CheckpointSpec",
    },
    "optimizer": {
        "adamw": "unmask.optimizers.base:AdamW",
        "muon": "unmask.optimizers.muon:Muon",
    },
    "source": {
        "text": "unmask.data.sources:TextSource",
        "fasta": "unmask.data.sources.text:FastaSource",
        "huggingface": "unmask.data.sources.huggingface:HuggingFaceSource",
        "markov": "unmask.data.puzzles:MarkovSource",
        "sudoku": "unmask.data.puzzles:SudokuSource",
        "paths": "unmask.data.puzzles:PathsSource",
        "stdin": "unmask.data.sources:StdinSource",
        "stdlib": "unmask.data.stdlib:StdlibSource",
        "functions": "unmask.data.stdlib:FunctionsSource",
        "mixture": "unmask.data.split:MixtureSource",
    },
    "tokenizer": {
        "byte": "unmask.data.tokenizers:ByteTokenizer",
        "char": "unmask.data.tokenizers:CharTokenizer",
        "bpe": "unmask.data.tokenizers:BPETokenizer",
        "huggingface": "unmask.data.tokenizers:HuggingFaceTokenizer",
        "dna": "unmask.data.tokenizers:DNATokenizer",
    },
    "policy": {
        "packed": "unmask.data.length_policies:Packed",
        "padded": "unmask.data.length_policies:Padded",
        "supervised_eos": "unmask.data.length_policies:SupervisedEOS",
        "overlaid": "unmask.data.length_policies:Overlaid",
        "prompted": "unmask.data.length_policies:Prompted",
    },
}

ALIASES: dict[str, dict[str, str]] = {"sampler": {"reveal": "ancestral"}}
"""Earlier names of members, which keep opening."""


class Component(BaseModel):
    """A small frozen, serialisable member of an axis. Each member adds ``name: Literal["its-name"] = "its-name"``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


C = TypeVar("C", bound=Component)


def names(axis: str) -> list[str]:
    """The registered names of one axis, in the order in which they were registered."""
    return list(_axis(axis))


def register(axis: str, name: str, member: str | type) -> None:
    """Add a member: a class, or ``"package.module:Class"`` to import it only when it is used."""
    members = _axis(axis)
    if name in members and members[name] != member:
        raise UnmaskError(f"The {axis} '{name}' is registered already; choose another name.")
    members[name] = member


def get(axis: str, name: str) -> Any:
    """The class registered under a name, imported now."""
    members = _axis(axis)
    name = ALIASES.get(axis, {}).get(name, name)
    if name not in members:
        raise UnmaskError(f"There is no {axis} named '{name}'.{did_you_mean(name, members)}")
    target = members[name]
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        return getattr(importlib.import_module(module), attribute)
    return target


def build(axis: str, spec: str | Mapping[str, Any] | Component) -> Any:
    """Turn a name, a ``{name: ..., option: ...}`` mapping or a component itself into a validated component."""
    if isinstance(spec, Component):
        return spec
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise UnmaskError(f"A {axis} is a name or a mapping with a name, not {spec!r}; write it as {{name: ...}}.")
    member = get(axis, spec["name"])
    options = set(member.model_fields) - {"name"}
    for key in spec:
        if key != "name" and key not in options:
            raise UnmaskError(f"The {axis} '{spec['name']}' has no option '{key}'.{did_you_mean(key, options)}")
    try:
        return member(**{**spec, "name": ALIASES.get(axis, {}).get(spec["name"], spec["name"])})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        raise UnmaskError(
            f"The {axis} '{spec['name']}' cannot take {where}={first.get('input')!r}: {ended(said(first['msg']))}"
        ) from error


_OURS = {
    "Input should be": "it must be",
    "List should have": "it must have",
    "Field required": "a value is missing",
    "a valid tuple": "a list",
}
_INSTANCE = re.compile(r"a valid dictionary or instance of \w+")


def said(message: str) -> str:
    """What pydantic says of a wrong value, as the end of a sentence of ours."""
    wanted = message.removeprefix("Value error, ").partition(", unable to")[0].partition(" after validation")[0]
    for theirs, ours in _OURS.items():
        wanted = wanted.replace(theirs, ours, 1)
    return _INSTANCE.sub("a mapping", wanted).rstrip(".")


def ended(sentence: str) -> str:
    """A sentence with the full stop that a question does without."""
    return sentence if sentence.endswith("?") else f"{sentence}."


def field(axis: str) -> Any:
    """The Pydantic field type that holds a member of an axis: ``schedule: field("schedule") = LogLinear()``."""
    return Annotated[SerializeAsAny[Component], BeforeValidator(lambda spec: build(axis, spec))]


def _axis(axis: str) -> dict[str, str | type]:
    if axis not in AXES:
        raise UnmaskError(f"There is no axis named '{axis}'.{did_you_mean(axis, AXES)}")
    return AXES[axis]
