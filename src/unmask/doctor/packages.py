"""Which packages are here, in which versions, and what is missing, by what the installed `unmask` says it needs."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from unmask.doctor.findings import Finding, not_applicable
from unmask.version import __version__

DISTRIBUTION = "unmask"


@dataclass(frozen=True)
class Package:
    """A distribution, needed in the versions `wanted` (such as ">=2.6,<3"); `version` is None where it is missing."""

    name: str
    version: str | None
    wanted: str

    @property
    def supported(self) -> bool:
        """Whether it is here in a version that is wanted."""
        return self.version is not None and SpecifierSet(self.wanted).contains(self.version, prereleases=True)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "supported": self.supported}


@dataclass(frozen=True)
class Extra:
    """An extra of the package, and the packages that it brings."""

    name: str
    packages: tuple[Package, ...]

    @property
    def missing(self) -> list[Package]:
        """What is not here, or not in a version that is wanted."""
        return [package for package in self.packages if not package.supported]

    @property
    def install(self) -> str:
        """The command that brings all of it."""
        return f"pip install '{DISTRIBUTION}[{self.name}]'"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        packages = [package.as_dict() for package in self.packages]
        return {"name": self.name, "packages": packages, "complete": not self.missing, "install": self.install}


def version_findings() -> list[Finding]:
    """unmask, Python and every package that unmask needs, each inside the range that it declares."""
    own = Finding(DISTRIBUTION, True, None, None, __version__)
    if not _installed():
        why = f"{DISTRIBUTION} runs from its source and is not installed, so the ranges are not known"
        return [own, not_applicable("packages", why)]
    wanted = metadata.metadata(DISTRIBUTION)["Requires-Python"] or ""
    python = Package("Python", platform.python_version(), wanted)
    return [own, _judged(python), *(_judged(package) for package in needed())]


def needed() -> list[Package]:
    """The packages without which unmask does not run, in the order in which it names them."""
    return [_look_up(requirement) for requirement in _requirements() if _applies(requirement)]


def extras() -> list[Extra]:
    """Every extra of the installed package."""
    if not _installed():
        return []
    names = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    return [Extra(name, tuple(map(_look_up, _of_extra(name)))) for name in names]


def _judged(package: Package) -> Finding:
    here = package.version or "missing"
    if package.name == "Python":
        remedy = f"make an environment with Python {package.wanted}"
    else:
        remedy = f"pip install '{package.name}{package.wanted}'"
    return Finding(package.name, package.supported, None, None, f"{here} (wanted {package.wanted or 'any'})", remedy)


def _installed() -> bool:
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


def _requirements() -> list[Requirement]:
    return [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _of_extra(name: str) -> list[Requirement]:
    """What an extra adds; where it names other extras of unmask, what those add."""
    found = []
    for requirement in _requirements():
        if not _applies(requirement) and _applies(requirement, name):
            own = requirement.name == DISTRIBUTION
            found += [r for extra in sorted(requirement.extras) for r in _of_extra(extra)] if own else [requirement]
    return found


def _look_up(requirement: Requirement) -> Package:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        version = None
    return Package(requirement.name, version, str(requirement.specifier))
