"""unmask: train masked diffusion language models, trust their likelihoods, generate, fill and edit text with them.

>>> import unmask
>>> lm = unmask.load()  # the shipped model, or unmask.load("runs/mine")
>>> lm.generate(4, length=128, steps=64, seed=0)
>>> lm.fill("The [MASK] sat on the [MASK:3].")
>>> lm.score(["some text"])
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if "torch" not in sys.modules and not {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
    # OpenMP reads this once. Threads that spin while they wait starve each other next to a busy process.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from unmask import constraints
    from unmask.errors import UnmaskError
    from unmask.likelihood import Bound
    from unmask.pipeline import MaskedDiffusionLM, load
    from unmask.registry import register
    from unmask.text_processor import Frame, Generation
    from unmask.training.collator import DataCollatorForMaskedDiffusion
    from unmask.training.run import train

_WHERE = {
    "Bound": "unmask.likelihood",
    "DataCollatorForMaskedDiffusion": "unmask.training.collator",
    "Frame": "unmask.text_processor",
    "Generation": "unmask.text_processor",
    "MaskedDiffusionLM": "unmask.pipeline",
    "UnmaskError": "unmask.errors",
    "load": "unmask.pipeline",
    "register": "unmask.registry",
    "train": "unmask.training.run",
}

__all__ = [
    "Bound",
    "DataCollatorForMaskedDiffusion",
    "Frame",
    "Generation",
    "MaskedDiffusionLM",
    "UnmaskError",
    "__version__",
    "constraints",
    "load",
    "register",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import unmask` stays fast."""
    if name == "constraints":
        return import_module("unmask.constraints")
    if name in _WHERE:
        globals()[name] = value = getattr(import_module(_WHERE[name]), name)
        return value
    raise AttributeError(f"module 'unmask' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
