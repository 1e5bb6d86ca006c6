"""The machine: processors, memory, GPUs, what may be compiled or distributed on it, and where the cache lies."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from unmask.data.cache import cache_folder


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
    cache = cache_folder()
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
