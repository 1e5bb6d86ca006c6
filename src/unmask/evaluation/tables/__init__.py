"""The tables and figures of the paper as experiments: `unmask reproduce`.

An experiment names the runs that it needs and makes a table of them. `base` has what experiments are made of, and
`workspace` trains, measures and writes. A module of experiments has a tuple `EXPERIMENTS` and is named in `MODULES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from unmask.errors import UnmaskError, did_you_mean

if TYPE_CHECKING:
    from unmask.evaluation.tables.base import Experiment

MODULES = ("language_modeling", "estimators", "sampling", "scaling", "translation", "encoders", "dna")


def experiments() -> dict[str, Experiment]:
    """All experiments by name."""
    modules = [import_module(f"unmask.evaluation.tables.{name}") for name in MODULES]
    return {experiment.name: experiment for module in modules for experiment in module.EXPERIMENTS}


def get_experiment(name: str) -> Experiment:
    """An experiment by its name."""
    known = experiments()
    if name not in known:
        raise UnmaskError(f"There is no experiment named '{name}'.{did_you_mean(name, known)}")
    return known[name]
