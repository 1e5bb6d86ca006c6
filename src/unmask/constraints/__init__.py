"""What a canvas may contain, as one automaton over its tokens.

`members` are the constraints a user asks for; `letters` and `patterns` read text and `vocabulary` tokens, `lifting`
joins them; `automaton` is what all become, and `binding` says whether a canvas can satisfy it. The draw is a sampler's.
"""

from unmask.constraints.automaton import Automaton
from unmask.constraints.members import (
    Allowed,
    Banned,
    Characters,
    CompiledConstraints,
    Constraint,
    Fixed,
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
    "Fixed",
    "NoWords",
    "Regex",
    "Vocabulary",
    "Words",
    "as_constraints",
    "compile_constraints",
    "masks_before_text",
]
