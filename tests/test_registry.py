"""Members by name: building, validation, registration."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
from pydantic import BaseModel, ValidationError

from unmask import registry
from unmask.errors import UnmaskError
from unmask.registry import Component
from unmask.schedules import LogLinear, Polynomial


class Steps(Component):
    """A component to register."""

    name: Literal["steps"] = "steps"
    size: int = 3


@pytest.mark.parametrize(("axis", "name"), [(axis, name) for axis in registry.AXES for name in registry.names(axis)])
def test_every_member_is_a_documented_component_with_its_name(axis, name):
    member = registry.get(axis, name)
    assert issubclass(member, Component)
    assert member.model_fields["name"].default == name
    options = dict.fromkeys(member.model_fields) | {"name": name}
    assert registry.check_options(axis, options) == options, "the fields are found without importing the class"
    with pytest.raises(UnmaskError, match="no option 'model_config'"):
        registry.check_options(axis, {"name": name, "model_config": None})
    assert member.__doc__


def test_a_component_is_built_from_a_name_a_mapping_or_itself():
    assert registry.build("schedule", "loglinear") == LogLinear()
    polynomial = registry.build("schedule", {"name": "polynomial", "power": 3})
    assert polynomial == Polynomial(power=3)
    assert registry.build("schedule", polynomial) is polynomial
    with pytest.raises(ValidationError):
        polynomial.power = 2


def test_an_earlier_name_keeps_opening():
    for axis, aliases in registry.ALIASES.items():
        for old, new in aliases.items():
            assert registry.get(axis, old) is registry.get(axis, new)
            assert registry.build(axis, old) == registry.build(axis, new)


@pytest.mark.parametrize(
    ("axis", "spec", "message"),
    [
        ("schedule", "loglinaer", "no schedule named 'loglinaer'. Did you mean 'loglinear'"),
        ("schedule", "zzz", "Choose one of: .*cosine"),
        ("schedule", {"name": "polynomial", "pwoer": 2}, "no option 'pwoer'.*Did you mean 'power'"),
        ("schedule", {"name": "polynomial", "power": -1}, "polynomial.*power must be greater than 0, got -1"),
        ("schedule", {"power": 2}, "name or a mapping"),
        ("schedule", 7, "got 7"),
        ("schedul", "loglinear", "no axis named 'schedul'. Did you mean 'schedule'"),
    ],
)
def test_a_bad_spec_is_one_sentence(axis, spec, message):
    with pytest.raises(UnmaskError, match=message):
        registry.build(axis, spec)


def test_a_new_member_is_registered_once(monkeypatch):
    monkeypatch.setitem(registry.AXES, "schedule", dict(registry.AXES["schedule"]))
    registry.register("schedule", "steps", Steps)
    registry.register("schedule", "steps", Steps)
    assert registry.names("schedule")[-1] == "steps"
    assert registry.build("schedule", {"name": "steps", "size": 5}).size == 5
    with pytest.raises(UnmaskError, match="already registered"):
        registry.register("schedule", "steps", LogLinear)


def test_a_field_reads_and_writes_its_component():
    class Recipe(BaseModel):
        schedule: registry.field("schedule") = LogLinear()

    recipe = Recipe(schedule={"name": "polynomial", "power": 3})
    assert recipe.model_dump()["schedule"] == {"name": "polynomial", "power": 3.0}
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    with pytest.raises(ValidationError, match="no schedule named"):
        Recipe(schedule="nothing")


def test_names_do_not_import_torch():
    code = "import sys, unmask.registry as r; r.names('model'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_options_are_checked_in_several_threads():
    """A finaliser that gives way to another thread must not disturb the reading of a source."""

    class Yielding:
        def __init__(self) -> None:
            self.cycle = self

        def __del__(self) -> None:
            time.sleep(0.0001)

    def check(number: int) -> None:
        Yielding()
        registry._fields.cache_clear()
        registry.check_options("sampler", ["ordered", "remdm"][number % 2])

    before = gc.get_threshold()
    gc.set_threshold(300)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(check, range(24)))
    finally:
        gc.set_threshold(*before)
