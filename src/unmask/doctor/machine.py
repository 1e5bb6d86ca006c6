"""Which packages are here, in which versions, and what is missing, by what the installed `unmask` says it needs."""

from __future__ import annotations

import math
import os
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from unmask import __version__
from unmask.data.build_once import cache_dir


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check. `passed` is None where the check does not apply; `words` then say why."""

    name: str
    passed: bool | None
    value: float | None
    limit: float | None
    words: str
    remedy: str = ""
    """What to do next when the check fails."""

    @property
    def failed(self) -> bool:
        """Whether the check was made and not passed."""
        return self.passed is False

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a figure that is no number is None, and the check has failed."""
        finite = {key: _finite(getattr(self, key)) for key in ("value", "limit")}
        return asdict(self) | finite


def at_most(name: str, value: float, limit: float, words: str, remedy: str) -> CheckResult:
    """A figure that must not be above its limit; a NaN always is."""
    return CheckResult(name, value <= limit, value, limit, words, remedy)


def not_applicable(name: str, why: str) -> CheckResult:
    """A check that cannot be asked of this checkpoint."""
    return CheckResult(name, None, None, None, why)


def not_made(name: str, error: Exception) -> CheckResult:
    """A check that broke off, which is a failure too."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
    words = f"the check broke off with {type(error).__name__}: {reason}"
    return CheckResult(name, False, None, None, words, "mend what the message names, or report it")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Gpu:
    """A CUDA device; sizes in bytes."""

    name: str
    memory: int
    free: int
    capability: str
    bf16: bool


@dataclass(frozen=True)
class Machine:
    """What there is; sizes in bytes. torch.compile needs `compiler` for the CPU and `triton` for a GPU."""

    platform: str
    cores: int
    threads: int
    """Threads that torch uses for one operation."""
    memory: int
    gpus: tuple[Gpu, ...]
    driver_unused: bool
    """There is an NVIDIA driver, but this torch cannot use it."""
    backends: tuple[str, ...]
    """What distributed training can talk over."""
    compiler: str | None
    triton: bool
    cache: str
    cache_free: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def look() -> Machine:
    """This machine."""
    gpus = tuple(map(_gpu, range(torch.cuda.device_count()))) if torch.cuda.is_available() else ()
    cache = cache_dir()
    return Machine(
        platform=platform.platform(),
        cores=_cores(),
        threads=torch.get_num_threads(),
        memory=psutil.virtual_memory().total,
        gpus=gpus,
        driver_unused=not gpus and shutil.which("nvidia-smi") is not None,
        backends=_backends(),
        compiler=_compiler(),
        triton=find_spec("triton") is not None,
        cache=str(cache),
        cache_free=shutil.disk_usage(_nearest(cache)).free,
    )


def _gpu(index: int) -> Gpu:
    about = torch.cuda.get_device_properties(index)
    with torch.cuda.device(index):
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    free, _ = torch.cuda.mem_get_info(index)
    return Gpu(about.name, about.total_memory, free, f"{about.major}.{about.minor}", bf16)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _backends() -> tuple[str, ...]:
    from torch import distributed

    if not distributed.is_available():
        return ()
    return tuple(name for name in ("gloo", "nccl", "mpi") if distributed.is_backend_available(name))


def _compiler() -> str | None:
    """The C++ compiler that torch.compile would call on a CPU."""
    names = (os.environ.get("CXX"), "g++", "clang++", "cl")
    return next((name for name in names if name and shutil.which(name)), None)


def _nearest(path: Path) -> Path:
    """The folder itself, or the closest one above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


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


def version_findings() -> list[CheckResult]:
    """unmask, Python and every package that unmask needs, each inside the range that it declares."""
    own = CheckResult(DISTRIBUTION, True, None, None, __version__)
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


def _judged(package: Package) -> CheckResult:
    here = package.version or "missing"
    if package.name == "Python":
        remedy = f"make an environment with Python {package.wanted}"
    else:
        remedy = f"pip install '{package.name}{package.wanted}'"
    return CheckResult(
        package.name, package.supported, None, None, f"{here} (wanted {package.wanted or 'any'})", remedy
    )


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
