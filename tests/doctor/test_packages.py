"""What is installed, told by the metadata of a made-up installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.doctor import machine as packages

NEEDS = """Metadata-Version: 2.4
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
    """Make distributions that Python finds before the real ones; `install(stonework="2.1")`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(**versions: str) -> None:
        for name, version in versions.items():
            text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
            _write(tmp_path / f"{name}-{version}.dist-info", text)

    _write(tmp_path / "unmask-9.9.dist-info", NEEDS)
    return add


def _write(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "METADATA").write_text(text)


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_versions_are_judged_by_the_ranges_of_the_installed_package(install):
    install(stonework="2.1.0+cpu", mortar="1.4")
    found = by_name(packages.version_findings())
    assert found["Python"].passed
    assert found["stonework"].passed
    assert found["stonework"].words == "2.1.0+cpu (wanted <3,>=2)"
    assert found["mortar"].failed
    assert found["mortar"].remedy == "pip install 'mortar>=1.5'"
    assert "straw" not in found
    assert "tiles" not in found


def test_a_missing_package_is_a_failure(install):
    install(mortar="2.0")
    found = by_name(packages.version_findings())
    assert found["stonework"].failed
    assert "missing" in found["stonework"].words


def test_extras_say_what_is_there_and_what_is_missing(install):
    install(tiles="4.2", spade="0.9")
    roof, garden, everything = packages.extras()
    assert [package.name for package in roof.missing] == ["gutter"]
    assert roof.install == "pip install 'unmask[roof]'"
    assert [(package.name, package.version) for package in garden.missing] == [("spade", "0.9")]
    assert [package.name for package in everything.packages] == ["spade", "tiles", "gutter"]
    install(gutter="1.0")
    assert packages.extras()[0].missing == []
    assert packages.extras()[0].as_dict()["complete"] is True


def test_source_that_is_not_installed_has_no_ranges(monkeypatch):
    monkeypatch.setattr(packages, "DISTRIBUTION", "nobody-installs-this")
    (own, rest) = packages.version_findings()
    assert own.passed
    assert rest.passed is None
    assert packages.extras() == []
