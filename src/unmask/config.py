"""Recipes: a YAML file and key=value overrides, read into typed, frozen models."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from unmask.data.sources import is_pattern, source_spec
from unmask.errors import UnmaskError, did_you_mean, first_line
from unmask.io import parse_yaml
from unmask.registry import build, check_options, field, requirement

RECIPES = Path(str(files("unmask") / "recipes"))
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Section(BaseModel):
    """A part of a recipe. It is frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Section):
    """The source of the text, and how it becomes rows of tokens."""

    source: field("source") = Field(default_factory=lambda: build("source", "stdlib"))  # type: ignore[valid-type]
    tokenizer: field("tokenizer") = Field(default_factory=lambda: build("tokenizer", "byte"))  # type: ignore[valid-type]
    policy: field("policy") = Field(default_factory=lambda: build("policy", "packed"))  # type: ignore[valid-type]
    length: int = Field(default=128, ge=2)
    validation: float = Field(default=0.05, gt=0, lt=1)
    """Share of the documents that is held out if the source has no split of its own."""
    reverse_complement: float = Field(default=0.0, ge=0, le=1)
    """The probability with which a training row of DNA is read on the opposite strand."""
    seed: Seed = 0


class TrainingConfig(Section):
    """Length of the run, batch size, precision, logging and checkpoints."""

    steps: int = Field(default=1000, ge=1)
    batch_size: int = Field(default=32, ge=1, le=1_000_000)
    """Sequences per optimiser step, over all processes and micro-batches."""
    accumulation: int = Field(default=1, ge=1)
    """Micro-batches per optimiser step, to save memory. The result does not depend on it."""
    shard: bool = False
    """Shard weights, gradients and optimiser over the processes (FSDP2), for networks too large for one device."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    compile: bool | Literal["auto"] = "auto"
    """Whether to use torch.compile, which takes some seconds once; auto: on a GPU."""
    times: Literal["low-discrepancy", "iid"] = "low-discrepancy"
    """How the times of a batch are drawn: evenly spaced with one random offset, or independently."""
    seed: Seed = 0
    log_every: int = Field(default=20, ge=1)
    validate_every: int = Field(default=500, ge=1)
    validation_rows: int = Field(default=256, ge=1)
    save_every: int = Field(default=500, ge=1)
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints to keep on disk."""
    keep_best: int = Field(default=1, ge=0)
    """Checkpoints with the lowest validation bound to keep as well."""
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default_factory=list)
    """Trackers that receive the log besides log.jsonl."""
    sample_every: int | None = Field(default=None, ge=1)
    """Steps between texts generated with the EMA weights, for the log and the trackers."""
    samples: int = Field(default=2, ge=1)
    deterministic: bool = False
    """On a GPU, use deterministic kernels, so that a resumed run equals an unbroken one bit for bit."""


class Expectation(Section):
    """The expected result of the recipe and its tolerance."""

    bits_per_token: float | None = None
    bits_per_byte: float | None = None
    tolerance: float = Field(default=0.1, gt=0)
    note: str = ""


class Recipe(Section):
    """The configuration of one run. Every component is validated by its class."""

    data: DataConfig = Field(default_factory=DataConfig)
    model: field("model") = Field(default={"name": "dit", "size": "nano"}, validate_default=True)  # type: ignore[valid-type]
    objective: field("objective") = Field(default="subs", validate_default=True)  # type: ignore[valid-type]
    schedule: field("schedule") = Field(default="loglinear", validate_default=True)  # type: ignore[valid-type]
    optimizer: field("optimizer") = Field(default="adamw", validate_default=True)  # type: ignore[valid-type]
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    expect: Expectation = Field(default_factory=Expectation)

    @field_validator("optimizer", mode="before")
    @classmethod
    def default_to_adamw(cls, spec: Any) -> Any:
        return {"name": "adamw", **spec} if isinstance(spec, dict) else spec

    def to_yaml(self) -> str:
        """The resolved recipe; reading it again gives the same run."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def shipped_recipes() -> list[str]:
    """Names of the recipes inside the package, such as ``demo`` or ``paper/lm1b``."""
    return sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.yaml"))


def read_recipe(recipe: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a YAML file, a shipped recipe by name, or (None) the defaults, and apply ``key.sub=value`` overrides."""
    return parse_recipe(_read_values(recipe, overrides))


def _read_values(recipe: str | Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    return with_overrides({} if recipe is None else _read_yaml(_find(str(recipe))), overrides)


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The values of a recipe with ``key.sub=value`` overrides applied."""
    changed = dict(values)
    for override in overrides:
        _override(changed, override)
    return changed


def recipe_for(what: str, overrides: Sequence[str] = (), for_text: str = "default") -> Recipe:
    """Read a recipe (a YAML file or a shipped name), or apply the recipe ``for_text`` to the text that is named.

    Text is a file, folder or pattern, ``hf:NAME`` for a dataset on the Hugging Face hub, or ``-`` for standard input.
    """
    return parse_recipe(_values_for(what, overrides, for_text))


def _values_for(what: str, overrides: Sequence[str], for_text: str) -> dict[str, Any]:
    if is_recipe(what):
        return _read_values(what, overrides)
    if _is_text(what):
        return _read_values(for_text, [source_override(what), *overrides])
    path = Path(what)
    near = difflib.get_close_matches(str(path), [str(entry) for entry in path.parent.glob("*")], n=1)
    choices = [*shipped_recipes(), *near]
    raise UnmaskError(f"'{what}' is neither a text file or folder nor a recipe.{did_you_mean(what, choices)}")


class _DataAndTraining(Section):
    """The sections of a recipe that are validated without torch; the others are not validated."""

    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    expect: Expectation = Field(default_factory=Expectation)
    model: Any = Recipe.model_fields["model"].default
    objective: Any = Recipe.model_fields["objective"].default
    schedule: Any = Recipe.model_fields["schedule"].default
    optimizer: Any = Recipe.model_fields["optimizer"].default


def check_recipe(what: str, overrides: Sequence[str], fine_tunes: bool) -> None:
    """Raise `UnmaskError` for missing text, a missing field and most wrong keys, before anything imports torch."""
    values = _values_for(what, (), "finetune" if fine_tunes else "default")
    own_source = "source" in values.get("data", {})
    starts_from_checkpoint = isinstance(model := values.get("model"), dict) and model.get("name") == "checkpoint"
    for override in overrides:
        inherited = override.startswith("data.source.") and starts_from_checkpoint and not own_source
        if not inherited:  # an option of the checkpoint's source, which is not known yet
            _override(values, override)
            own_source = own_source or override.startswith("data.source=")
    data = values.get("data")
    for axis in ("source", "tokenizer", "policy"):
        if isinstance(data, dict) and axis in data:
            check_options(axis, data[axis], f"data.{axis}")
    try:
        recipe = _DataAndTraining(**values)
    except ValidationError as error:
        raise UnmaskError(_explain(error)) from error
    if not fine_tunes:  # else they come from the checkpoint
        check_options("model", recipe.model, "model")
        check_options("objective", recipe.objective, "objective")
        check_options("schedule", recipe.schedule, "schedule")
    check_options("optimizer", Recipe.default_to_adamw(recipe.optimizer), "optimizer")
    recipe.data.source.check()


def is_recipe(what: str) -> bool:
    """Whether this names a recipe rather than text to train on."""
    return Path(what).suffix in (".yaml", ".yml") or (what in shipped_recipes() and not Path(what).exists())


def source_override(text: str) -> str:
    """The override that applies a recipe to a text."""
    if not _is_text(text):
        raise UnmaskError(f"'{text}' is neither text to train on nor an override of the form key.sub=value.")
    return f"data.source={yaml.safe_dump(source_spec(text), default_flow_style=True)}"


def _is_text(what: str) -> bool:
    """Whether this is standard input, a dataset name, a pattern or an existing path."""
    return source_spec(what)["name"] != "text" or Path(what).exists() or is_pattern(what)


def parse_recipe(values: dict[str, Any]) -> Recipe:
    """Validate a mapping; the first problem becomes a one-sentence error."""
    try:
        return Recipe(**values)
    except ValidationError as error:
        raise UnmaskError(_explain(error)) from error


def _find(recipe: str) -> Path:
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UnmaskError(f"There is no recipe file '{recipe}'; give a path to a YAML file or a shipped name.")
        return path
    if recipe in shipped_recipes():
        return RECIPES / f"{recipe}.yaml"
    raise UnmaskError(f"There is no recipe named '{recipe}'.{did_you_mean(recipe, shipped_recipes())}")


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnmaskError(f"'{path}' is not YAML ({first_line(error)}); correct it, or name a recipe.") from error
    if not isinstance(values, dict):
        raise UnmaskError(f"'{path}' is not a recipe; write a mapping with data, model, training and so on.")
    return values


def _override(values: dict[str, Any], override: str) -> None:
    """Set one nested value. A missing section starts from the defaults; a new name drops the old options."""
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise UnmaskError(f"The override '{override}' is not of the form key.sub=value.")
    *path, last = key.split(".")
    at = values
    default: Any = _DataAndTraining().model_dump(mode="json")
    for part in path:
        default = default.get(part) if isinstance(default, dict) else None
        inner = at.get(part, default)
        at[part] = {"name": inner} if isinstance(inner, str) else dict(inner) if isinstance(inner, dict) else {}
        at = at[part]
    if last == "name":
        at.clear()
    at[last] = override_value(override)


def override_value(override: str) -> Any:
    """The value of an override "key.sub=value"."""
    try:
        return parse_yaml(override.partition("=")[2])
    except ValueError as error:
        raise UnmaskError(f"The value of the override '{override}' is not YAML; quote it.") from error


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    keys = _keys(first["loc"])
    where = ".".join(keys)
    if first["type"] == "extra_forbidden":
        return f"A recipe has no key '{where}'.{did_you_mean(keys[-1], _section(first['loc'][:-1]).model_fields)}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    others = [requirement(other["msg"]) for other in error.errors()[1:] if _keys(other["loc"]) == keys]
    wanted = " or ".join([requirement(first["msg"]), *(other.removeprefix("must be ") for other in others)])
    return f"{where} {wanted}, got {first.get('input')!r}."


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys of a wrong value, without the union member that pydantic appends."""
    for size in range(1, len(location)):
        if not hasattr(_section(location[:size]), "model_fields"):
            return [str(part) for part in location[:size]]
    return [str(part) for part in location]


def _section(location: tuple[int | str, ...]) -> Any:
    section: Any = Recipe
    for part in location:
        section = section.model_fields[part].annotation if part in section.model_fields else None
    return section
