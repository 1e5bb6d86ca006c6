"""Packages, extras, hardware, and the laws on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from unmask import doctor, laws
from unmask.doctor import check_packages, describe_machine, list_extras, run_laws
from unmask.laws.base import on_device

METADATA = """Metadata-Version: 2.4
Name: unmask
Version: 9.9
Requires-Python: >=3.10
Requires-Dist: stonework<3,>=2
Requires-Dist: mortar>=1.5
Requires-Dist: straw; python_version < "3"
Provides-Extra: roof
Requires-Dist: tiles>=4; extra == "roof"
Requires-Dist: gutter; extra == "roof"
Provides-Extra: garden
Requires-Dist: spade>=1; extra == "garden"
Provides-Extra: all
Requires-Dist: unmask[garden,roof]; extra == "all"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch):
    """Install made-up distributions, which Python finds before the real ones: `install(stonework="2.1")`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, version: str, text: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(text)

    def add(**versions: str) -> None:
        for name, version in versions.items():
            write(name, version, f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")

    write("unmask", "9.9", METADATA)
    return add


def test_packages_are_checked_against_the_declared_versions(install):
    install(stonework="2.1.0+cpu")
    found = {result.name: result for result in check_packages()}
    assert set(found) == {"unmask", "Python", "stonework", "mortar"}
    assert found["Python"].passed
    assert found["stonework"].passed
    assert found["stonework"].words == "2.1.0+cpu (requires <3,>=2)"
    assert found["mortar"].passed is False
    assert found["mortar"].words == "missing (requires >=1.5)"
    install(mortar="1.4")
    found = {result.name: result for result in check_packages()}
    assert found["mortar"].passed is False
    assert found["mortar"].remedy == "pip install 'mortar>=1.5'"


def test_extras_list_their_packages(install):
    install(tiles="4.2", spade="0.9")
    roof, garden, everything = list_extras()
    assert [(one["name"], one["supported"]) for one in roof["packages"]] == [("tiles", True), ("gutter", False)]
    assert (roof["complete"], roof["install"]) == (False, "pip install 'unmask[roof]'")
    assert garden["packages"] == [{"name": "spade", "version": "0.9", "wanted": ">=1", "supported": False}]
    assert [one["name"] for one in everything["packages"]] == ["spade", "tiles", "gutter"]
    install(gutter="1.0")
    assert list_extras()[0]["complete"] is True


def test_requirements_are_unknown_without_an_installation(monkeypatch):
    monkeypatch.setattr(doctor, "DISTRIBUTION", "not-installed-anywhere")
    own, rest = check_packages()
    assert own.passed
    assert rest.passed is None
    assert list_extras() == []


def test_the_machine_is_described(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "not" / "there" / "yet"))
    found = describe_machine()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["threads"] == torch.get_num_threads()
    assert found["memory"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert "gloo" in found["backends"]
    assert found["cache"].endswith("yet")
    assert found["cache_free"] == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    assert not (tmp_path / "not").exists()


def test_an_unusable_driver_and_the_compiler_are_reported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in ("nvidia-smi", "clang++", "mine") else None)
    found = describe_machine()
    assert (found["driver_unused"], found["compiler"]) == (True, "clang++")
    monkeypatch.setenv("CXX", "mine")
    assert describe_machine()["compiler"] == "mine"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = describe_machine()
    assert (found["driver_unused"], found["compiler"]) == (False, None)


def test_every_case_counts_and_the_closest_is_reported(monkeypatch):
    monkeypatch.setattr(laws, "AXES", ("schedule", "objective"))
    done = []
    schedules, objectives = run_laws(torch.device("cpu"), done.append)
    assert sum(done) == sum(len(laws.cases(axis)) for axis in laws.AXES)
    results = list(laws.run(("schedule",)))
    assert schedules["checks"] == len(results)
    assert schedules["members"] == len(laws.members("schedule"))
    assert schedules["closest"]["share"] == max(one.value / one.limit for one in results if one.limit > 0)
    assert (objectives["axis"], objectives["passed"], objectives["broken"]) == ("objective", True, [])


def test_tensors_of_the_cpu_move_to_the_device():
    """On the meta device, which computes nothing but keeps track of devices."""
    constant = torch.arange(3)
    with on_device("meta"):
        made = torch.zeros(3)
        found = {
            "made": made,
            "sum": constant + 1,
            "joined": torch.cat([constant, constant]),
            "chosen": torch.where(constant > 1, constant, other=constant),
            "indexed": made[constant],
        }
        drawn = torch.randn(3, generator=torch.Generator().manual_seed(0))
    assert {name: tensor.device.type for name, tensor in found.items()} == dict.fromkeys(found, "meta")
    assert drawn.device.type == "cpu"
    assert constant.device.type == "cpu"
    with on_device("cpu"):
        assert torch.zeros(1).device.type == "cpu"
