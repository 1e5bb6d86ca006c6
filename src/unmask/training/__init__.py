"""Training on Accelerate: the loop and its pieces. Whoever needs to know of devices and processes lives here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.training.callbacks import Progress, progress_for
    from unmask.training.distributed import is_main
    from unmask.training.trainer import Interrupted, TrainingResult, train

__all__ = ["Interrupted", "Progress", "TrainingResult", "is_main", "progress_for", "train"]

_MODULES = {"Progress": "callbacks", "progress_for": "callbacks", "is_main": "distributed"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that who only reads a log does not wait for torch."""
    if name in __all__:
        return getattr(import_module(f"unmask.training.{_MODULES.get(name, 'trainer')}"), name)
    raise AttributeError(f"module 'unmask.training' has no attribute '{name}'")
