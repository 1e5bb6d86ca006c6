"""The members of every axis by name. A member is one class and one line here, and is imported when it is first used.

Recipes, ``unmask.json`` and result files hold a component as ``{name: polynomial, power: 2}`` (or just its name). Its
class validates it.
"""

from __future__ import annotations

import ast
import importlib
import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, ValidationError, create_model

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
        "mlm": "unmask.objectives.mlm:MLM",
    },
    "sampler": {
        "ancestral": "unmask.samplers.ancestral:AncestralSampler",
        "analytic": "unmask.samplers.analytic:AnalyticSampler",
        "ar": "unmask.samplers.autoregressive:AutoregressiveSampler",
        "ordered": "unmask.samplers.ordered:OrderedSampler",
        "block": "unmask.samplers.block:BlockSampler",
        "threshold": "unmask.samplers.ordered:ThresholdSampler",
        "entropy_bounded": "unmask.samplers.ordered:EntropyBoundedSampler",
        "remdm": "unmask.samplers.remasking:ReMDMSampler",
        "remdm-conf": "unmask.samplers.remasking:ReMDMConfSampler",
        "corrector": "unmask.samplers.remasking:CorrectorSampler",
    },
    "model": {
        "dit": "unmask.models.build:DiTSpec",
        "causal": "unmask.models.build:CausalSpec",
        "encoder": "unmask.models.encoder:EncoderSpec",
        "encoder-decoder": "unmask.models.encoder_decoder:EncoderDecoderSpec",
        "mamba": "unmask.models.mamba:MambaSpec",
        "bimamba": "unmask.models.mamba:BiMambaSpec",
        "caduceus-ps": "unmask.models.caduceus:CaduceusPSSpec",
        "caduceus-ph": "unmask.models.caduceus:CaduceusPHSpec",
        "hyena": "unmask.models.hyena:HyenaSpec",
        "checkpoint": "unmask.models.build:CheckpointSpec",
        "adapted": "unmask.models.decoder:AdaptedSpec",
    },
    "optimizer": {
        "adamw": "unmask.optimizers.base:AdamW",
        "muon": "unmask.optimizers.muon:Muon",
    },
    "source": {
        "text": "unmask.data.sources.text:TextSource",
        "fasta": "unmask.data.sources.fasta:FastaSource",
        "genome": "unmask.data.sources.genome:GenomeSource",
        "huggingface": "unmask.data.sources.huggingface:HuggingFaceSource",
        "parallel": "unmask.data.sources.parallel:ParallelSource",
        "toy_translation": "unmask.data.sources.parallel:ToyTranslationSource",
        "markov": "unmask.data.puzzles:MarkovSource",
        "sudoku": "unmask.data.puzzles:SudokuSource",
        "paths": "unmask.data.puzzles:PathsSource",
        "stdin": "unmask.data.sources.text:StdinSource",
        "stdlib": "unmask.data.sources.stdlib:StdlibSource",
        "functions": "unmask.data.sources.stdlib:FunctionsSource",
        "mixture": "unmask.data.split:MixtureSource",
        "protocol": "unmask.data.protocols:ProtocolSource",
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


_parsing = threading.Lock()
"""`ast.parse` in two threads at once may raise a SystemError (CPython 3.11)."""


class Component(BaseModel):
    """A small frozen, serialisable member of an axis. Each member adds ``name: Literal["its-name"] = "its-name"``."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def names(axis: str) -> list[str]:
    """The registered names of one axis, in order of registration."""
    return list(_members(axis))


def register(axis: str, name: str, member: str | type) -> None:
    """Add a member: a class, or ``"package.module:Class"`` to import it when it is first used."""
    members = _members(axis)
    if name in members and members[name] != member:
        raise UnmaskError(f"The {axis} '{name}' is already registered; choose another name.")
    members[name] = member


def get(axis: str, name: str) -> Any:
    """Import and return the class registered under a name."""
    _, target = _find(axis, name)
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        return getattr(importlib.import_module(module), attribute)
    return target


def _find(axis: str, name: str, section: str = "") -> tuple[str, Any]:
    """The current name of a member, and its class or ``"module:Class"``."""
    members = _members(axis)
    name = ALIASES.get(axis, {}).get(name, name)
    if name not in members:
        fault = f"{section} must be the name of a {axis}, got" if section else f"There is no {axis} named"
        raise UnmaskError(f"{fault} '{name}'.{did_you_mean(name, members)}")
    return name, members[name]


def build(axis: str, spec: str | Mapping[str, Any] | Component) -> Any:
    """Turn a name, a ``{name: ..., option: ...}`` mapping or a component into a validated component."""
    if isinstance(spec, Component):
        return spec
    spec = check_options(axis, spec)
    try:
        return get(axis, spec["name"])(**spec)
    except ValidationError as error:
        raise UnmaskError(f"{axis} '{spec['name']}': {explain(error)}") from error


def check_options(axis: str, spec: str | Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Return a name or a mapping as a mapping, after checking its keys; this does not import the member, or torch.

    With the `section` of a recipe, such as "data.source", messages name keys in it, and values are checked as far as
    the annotations of the fields allow.
    """
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        wrong = f"{section} must be" if section else f"A {axis} must be"
        raise UnmaskError(f"{wrong} a name or a mapping {{name: ...}}, got {spec!r}.")
    name, target = _find(axis, spec["name"], section)
    options = (
        _fields(*target.split(":")) if isinstance(target, str) else dict.fromkeys(target.model_fields, (Any, None))
    )
    prefix = f"{section}." if section else ""
    for key in spec.keys() - options.keys():
        choices = did_you_mean(f"{prefix}{key}", (f"{prefix}{option}" for option in options.keys() - {"name"}))
        raise UnmaskError(f"The {axis} '{spec['name']}' has no option '{prefix}{key}'.{choices}")
    if section:
        fields: dict[str, Any] = {key: options[key] for key in spec if key != "name"}
        try:
            create_model("Options", **fields)(**{key: spec[key] for key in fields})
        except ValidationError as error:
            raise UnmaskError(f"{prefix}{explain(error)}") from error
    return {**spec, "name": name}


@cache
def _fields(module: str, name: str) -> dict[str, tuple[Any, Any]]:
    """The fields of a class, its base classes included: annotation and default, found without importing the class.

    They are read from the source of the package. Annotations that are not made of plain types become Any.
    """
    if not module.startswith("unmask."):
        return dict.fromkeys(getattr(importlib.import_module(module), name).model_fields, (Any, None))
    path = Path(__file__).parent.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    known = {"Any": Any, "Literal": Literal, "Field": Field}
    found: dict[str, tuple[Any, Any]] = {}
    with _parsing:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return _fields(str(node.module), name)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _evaluate(node.value, known)
        if isinstance(node, ast.ClassDef) and node.name == name:
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id != "Component":
                    found |= _fields(module, base.id)
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                    annotation = _evaluate(field.annotation, known)
                    default = None if field.value is None or annotation is Any else _evaluate(field.value, known)
                    found[ast.unparse(field.target)] = annotation, None if default is Any else default
            for method in node.body:  # a validator may turn other values into those of the field
                if isinstance(method, ast.FunctionDef):
                    for validator in method.decorator_list:
                        if "before" in ast.unparse(validator):
                            found |= {one: (Any, None) for one in found if f"'{one}'" in ast.unparse(validator)}
    return found


def _evaluate(expression: ast.expr, known: dict[str, Any]) -> Any:
    """The value of an expression of plain types and Pydantic's fields; Any for other expressions."""
    plain = {one.__name__: one for one in (bool, int, float, str, list, dict, tuple)}
    try:
        return eval(compile(ast.Expression(expression), "", "eval"), {"__builtins__": plain}, known)
    except Exception:
        return Any


def explain(error: ValidationError) -> str:
    """The first problem that pydantic found, such as ``power must be greater than 0, got -1.``"""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    where = ".".join(str(part) for part in first["loc"]) or "options"
    return f"{where} {requirement(first['msg'])}, got {first.get('input')!r}."


def requirement(message: str) -> str:
    """A message of pydantic as a clause: 'must be ...' or 'is missing'."""
    clause = message.partition(", unable to")[0].partition(" after validation")[0]
    for theirs, ours in (
        ("Input should be", "must be"),
        ("List should have", "must have"),
        ("Field required", "is missing"),
        ("Extra inputs are not permitted", "is not a known field"),
        ("a valid tuple", "a list"),
    ):
        clause = clause.replace(theirs, ours, 1)
    return re.sub(r"a valid dictionary or instance of \w+", "a mapping", clause)


def field(axis: str) -> Any:
    """The Pydantic field type of a member of an axis: ``schedule: field("schedule") = LogLinear()``."""
    return Annotated[SerializeAsAny[Component], BeforeValidator(lambda spec: build(axis, spec))]


def _members(axis: str) -> dict[str, str | type]:
    if axis not in AXES:
        raise UnmaskError(f"There is no axis named '{axis}'.{did_you_mean(axis, AXES)}")
    return AXES[axis]
