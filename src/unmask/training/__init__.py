"""Training on Accelerate: the loop and its parts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask.training.callbacks import Callback, make_progress
    from unmask.training.distributed import is_main
    from unmask.training.trainer import Interrupted, TrainingResult, train

__all__ = ["Callback", "Interrupted", "TrainingResult", "is_main", "make_progress", "train"]

_MODULES = {"Callback": "callbacks", "make_progress": "callbacks", "is_main": "distributed"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that reading a log does not import torch."""
    if name in __all__:
        module = import_module(f"unmask.training.{_MODULES.get(name, 'trainer')}")
        globals()[name] = value = getattr(module, name)
        return value
    raise AttributeError(f"module 'unmask.training' has no attribute '{name}'")
