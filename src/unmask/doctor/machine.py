"""Installed packages, extras and hardware."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import psutil
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from torch import distributed

from unmask import __version__
from unmask.doctor import CheckResult
from unmask.io import cache_dir

DISTRIBUTION = "unmask"


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
