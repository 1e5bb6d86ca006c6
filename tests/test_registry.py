"""The registry: what is there, what is built, and what a typing error is told."""

from __future__ import annotations

import subprocess
import sys
from typing import Literal

import pytest
from pydantic import BaseModel, ValidationError

from unmask import registry
from unmask.errors import UnmaskError
from unmask.registry import Component
from unmask.schedules import LogLinear, Polynomial

EVERY = [(axis, name) for axis in registry.AXES for name in registry.names(axis)]


class Steps(Component):
    """A component to register."""

    name: Literal["steps"] = "steps"
    size: int = 3


@pytest.mark.parametrize(("axis", "name"), EVERY)
def test_every_member_is_there_under_its_own_name(axis, name):
    member = registry.get(axis, name)
    assert issubclass(member, Component)
    assert member.model_fields["name"].default == name
    assert member.__doc__


def test_a_component_is_a_name_a_mapping_or_itself():
    assert registry.build("schedule", "loglinear") == LogLinear()
    assert registry.build("schedule", {"name": "polynomial", "power": 3}) == Polynomial(power=3)
    made = Polynomial(power=4)
    assert registry.build("schedule", made) is made


def test_a_component_is_frozen_and_takes_no_unknown_options():
    with pytest.raises(ValidationError):
        LogLinear().name = "other"
    with pytest.raises(ValidationError):
        LogLinear(power=2)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("loglinaer", "Did you mean 'loglinear'"),
        ("zzz", "Choose one of: .*cosine"),
        ({"name": "polynomial", "pwoer": 2}, "no option 'pwoer'.*Did you mean 'power'"),
        ({"name": "polynomial", "power": -1}, "polynomial.*power must be greater than 0, got -1"),
        ({"power": 2}, "name or a mapping"),
        (7, "got 7"),
    ],
)
def test_bad_input_is_answered_with_a_remedy(spec, words):
    with pytest.raises(UnmaskError, match=words):
        registry.build("schedule", spec)


def test_an_unknown_axis_is_named():
    with pytest.raises(UnmaskError, match="Did you mean 'schedule'"):
        registry.names("schedul")


def test_a_new_member_is_registered_once(monkeypatch):
    monkeypatch.setitem(registry.AXES, "schedule", dict(registry.AXES["schedule"]))
    registry.register("schedule", "steps", Steps)
    registry.register("schedule", "steps", Steps)
    assert registry.names("schedule")[-1] == "steps"
    assert registry.build("schedule", {"name": "steps", "size": 5}).size == 5
    with pytest.raises(UnmaskError, match="already registered"):
        registry.register("schedule", "steps", LogLinear)


def test_a_field_builds_and_writes_its_component():
    class Recipe(BaseModel):
        schedule: registry.field("schedule") = LogLinear()

    recipe = Recipe(schedule={"name": "polynomial", "power": 3})
    assert recipe.schedule == Polynomial(power=3)
    assert recipe.model_dump()["schedule"] == {"name": "polynomial", "power": 3.0}
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    with pytest.raises(ValidationError, match="no schedule named"):
        Recipe(schedule="nothing")


def test_members_are_imported_only_when_asked_for():
    code = "import sys, unmask.registry as r; r.names('model'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("spec", ["reveal", {"name": "reveal", "steps": 4}])
def test_an_earlier_name_of_a_member_keeps_opening(spec):
    built = registry.build("sampler", spec)
    assert built.name == "ancestral"
    assert built.model_dump()["name"] == "ancestral"
    assert "reveal" not in registry.names("sampler")
