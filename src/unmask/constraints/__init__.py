"""Constraints on a canvas, as one deterministic automaton over its tokens.

`members` holds the constraints, built on `regex`, `json_schema` and `vocabulary`; `sampling` draws exactly from
the prediction given a match, and `particles` correct the distribution of whole texts.
"""

from unmask.constraints.automaton import Automaton
from unmask.constraints.members import (
    Allowed,
    Banned,
    Characters,
    CompiledConstraints,
    Constraint,
    Count,
    Fixed,
    JsonSchema,
    NoWords,
    Regex,
    Words,
    as_constraints,
    compile_constraints,
    masks_before_text,
)
from unmask.constraints.vocabulary import Vocabulary

__all__ = [
    "Allowed",
    "Automaton",
    "Banned",
    "Characters",
    "CompiledConstraints",
    "Constraint",
    "Count",
    "Fixed",
    "JsonSchema",
    "NoWords",
    "Regex",
    "Vocabulary",
    "Words",
    "as_constraints",
    "compile_constraints",
    "masks_before_text",
]
