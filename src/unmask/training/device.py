"""Where a run computes and in which precision."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from unmask.config import TrainingConfig
from unmask.errors import UnmaskError


def make_accelerator(config: TrainingConfig) -> Accelerator:
    """The device of this process; bf16 on the GPUs that have it, unless the recipe says otherwise."""
    AcceleratorState._reset_state()  # an earlier run of this program may have had another precision
    accelerator = Accelerator(mixed_precision=_mixed_precision(config))
    if accelerator.num_processes > 1:
        raise UnmaskError(
            f"Training in {accelerator.num_processes} processes is not supported yet; start it as one process."
        )
    return accelerator


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Ask a GPU for kernels that give the same bits every time; a CPU does so anyway."""
    if not (wanted and torch.cuda.is_available()):
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _mixed_precision(config: TrainingConfig) -> str:
    automatic = "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "no"
    return {"auto": automatic, "float32": "no", "bf16": "bf16"}[config.precision]
