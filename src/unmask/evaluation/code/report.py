"""The table of an evaluation on code: one row for each kind of blank and way to fill it, rates with intervals."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.evaluation.code.filling import Filled
from unmask.evaluation.code.syntax import Kind
from unmask.evaluation.contests import report
from unmask.evaluation.contests.report import costs, pooled, wilson
from unmask.evaluation.generation.bootstrap import Estimate

RATES = ("parses", "exact", "same_tokens")


@dataclass(frozen=True)
class Row(report.Row):
    """One way, the kind of blanks, and what came of it."""

    kind: Kind = "line"


def figures_of(filled: Filled) -> dict[str, Estimate]:
    """Functions that parse, blanks filled exactly (but for white space; to the token), tokens right (bootstrap over
    blanks), calls and seconds a blank."""
    return {
        **{name: wilson(getattr(filled, name)) for name in RATES},
        "tokens": pooled(filled.right_tokens, filled.tokens),
        **costs(filled.calls, filled.seconds),
    }
