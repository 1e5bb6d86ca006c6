"""The figures of an evaluation on puzzles."""

from __future__ import annotations

from unmask.evaluation.contests.report import costs, pooled, wilson
from unmask.evaluation.generation.bootstrap import Estimate
from unmask.evaluation.puzzles.solving import Solved


def figures_of(solved: Solved) -> dict[str, Estimate]:
    """Items solved, cells right (bootstrap over items), answers that break no rule, calls and seconds an item."""
    return {
        "accuracy": wilson(solved.right),
        "cells": pooled(solved.right_cells, solved.cells),
        "valid": wilson(solved.valid),
        **costs(solved.calls, solved.seconds),
    }
