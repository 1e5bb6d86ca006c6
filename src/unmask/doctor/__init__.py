"""The checks behind `unmask doctor`: packages, hardware and the laws on this machine; `checkpoint` checks a model."""

from __future__ import annotations

import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import psutil
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from torch import distributed

from unmask import __version__, laws
from unmask.io import cache_dir
from unmask.laws import LawResult
from unmask.laws.base import on_device

DISTRIBUTION = "unmask"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. `passed` is None if the check does not apply; `words` says why."""

    name: str
    passed: bool | None
    words: str
    remedy: str = ""
    """What to do if the check failed."""
    value: float | None = None
    limit: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values; a value that is not finite becomes None."""
        return {**asdict(self), "value": finite(self.value), "limit": finite(self.limit)}


def finite(value: float | None) -> float | None:
    """Return the value, or None if JSON cannot hold it."""
    return value if value is not None and math.isfinite(value) else None


# ---- packages and hardware ------------------------------------------------------------------------------------------


def describe_machine() -> dict[str, Any]:
    """Describe hardware, distributed backends, compilers and the cache folder; sizes are in bytes.

    torch.compile needs `compiler` on a CPU and `triton` on a GPU. `driver_unused`: there is an NVIDIA driver, but this
    build of torch cannot use it.
    """
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        with torch.cuda.device(index):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        gpu = {"name": properties.name, "memory": properties.total_memory, "free": torch.cuda.mem_get_info(index)[0]}
        gpus.append({**gpu, "capability": f"{properties.major}.{properties.minor}", "bf16": bf16})
    compilers = (os.environ.get("CXX"), "g++", "clang++", "cl")  # in the order in which torch looks for them
    backends = ("gloo", "nccl", "mpi") if distributed.is_available() else ()
    cache = cache_dir()
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    return {
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory": psutil.virtual_memory().total,
        "gpus": gpus,
        "driver_unused": not gpus and shutil.which("nvidia-smi") is not None,
        "backends": [name for name in backends if distributed.is_backend_available(name)],
        "compiler": next((name for name in compilers if name and shutil.which(name)), None),
        "triton": find_spec("triton") is not None,
        "cache": str(cache),
        "cache_free": shutil.disk_usage(existing).free,
    }


def check_packages() -> list[CheckResult]:
    """Check Python and every required package against the versions that the installed unmask declares."""
    results = [CheckResult(DISTRIBUTION, True, __version__)]
    try:
        python = metadata.metadata(DISTRIBUTION)["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        return [*results, CheckResult("packages", None, "unmask is not installed, so its requirements are not known")]
    packages = [_package("Python", platform.python_version(), python)]
    packages += [_find_package(requirement) for requirement in _requirements() if _applies(requirement)]
    for package in packages:
        name, wanted = package["name"], package["wanted"]
        words = f"{package['version'] or 'missing'} (requires {wanted or 'any version'})"
        remedy = f"use Python {wanted}" if name == "Python" else f"pip install '{name}{wanted}'"
        results.append(CheckResult(name, package["supported"], words, remedy))
    return results


def list_extras() -> list[dict[str, Any]]:
    """List the extras of the installed unmask with their packages and the command that installs them."""
    try:
        names = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []
    extras = []
    for name in names:
        packages = [_find_package(requirement) for requirement in _extra_requirements(name)]
        complete = all(package["supported"] for package in packages)
        install = f"pip install '{DISTRIBUTION}[{name}]'"
        extras.append({"name": name, "packages": packages, "complete": complete, "install": install})
    return extras


def _requirements() -> list[Requirement]:
    return [Requirement(line) for line in metadata.requires(DISTRIBUTION) or []]


def _applies(requirement: Requirement, extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _extra_requirements(name: str) -> list[Requirement]:
    """Return the requirements that an extra adds, including those of other extras that it names."""
    found = []
    for requirement in _requirements():
        if not _applies(requirement) and _applies(requirement, name):
            if requirement.name == DISTRIBUTION:
                found += [one for extra in sorted(requirement.extras) for one in _extra_requirements(extra)]
            else:
                found.append(requirement)
    return found


def _find_package(requirement: Requirement) -> dict[str, Any]:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        version = None
    return _package(requirement.name, version, str(requirement.specifier))


def _package(name: str, version: str | None, wanted: str) -> dict[str, Any]:
    supported = version is not None and SpecifierSet(wanted).contains(version, prereleases=True)
    return {"name": name, "version": version, "wanted": wanted, "supported": supported}


# ---- laws -----------------------------------------------------------------------------------------------------------


def run_laws(device: torch.device, progress: Callable[[int], None] = lambda cases: None) -> Iterator[dict[str, Any]]:
    """Run every law on every member of every axis; yields one JSON object per axis.

    `closest` is the law that comes closest to its limit, and `share` the part of the limit that it uses. `progress` is
    called with 1 after each case.
    """
    for axis in laws.AXES:
        start = time.monotonic()
        cases = laws.cases(axis)
        results: list[LawResult] = []
        for case in cases:
            with on_device(device):
                results += case.run_safely()
            progress(1)
        broken = [law for law in results if not law.passed]
        closest = max(results, key=_share)
        yield {
            "axis": axis,
            "members": len({case.subject for case in cases}),
            "checks": len(results),
            "seconds": time.monotonic() - start,
            "passed": not broken,
            "closest": {**_as_dict(closest), "share": finite(_share(closest))},
            "broken": [_as_dict(law) for law in broken],
        }


def _share(law: LawResult) -> float:
    """Return the fraction of its limit that a law uses: infinite if it is broken, 0 if its limit is 0."""
    if not law.passed:
        return math.inf
    return max(law.value / law.limit, 0.0) if law.limit > 0 else 0.0


def _as_dict(law: LawResult) -> dict[str, Any]:
    return {
        "law": law.name,
        "subject": law.subject,
        "words": law.description,
        "figure": finite(law.value),
        "limit": law.limit,
    }
