"""Training on Accelerate: the loop and its pieces. Whoever needs to know of devices and processes lives here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.training.loop import Interrupted, TrainingResult, train
    from unmask.training.progress import Progress, progress_for
    from unmask.training.world import speaks

__all__ = ["Interrupted", "Progress", "TrainingResult", "progress_for", "speaks", "train"]

_ROOMS = {"Progress": "progress", "progress_for": "progress", "speaks": "world"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that who only reads a log does not wait for torch."""
    if name in __all__:
        return getattr(import_module(f"unmask.training.{_ROOMS.get(name, 'loop')}"), name)
    raise AttributeError(f"module 'unmask.training' has no attribute '{name}'")
