"""Constraints on canvases: one automaton of all, or one sentence that says why no canvas can satisfy them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unmask.constraints.automaton import Automaton, Bools, intersect
from unmask.constraints.members import Constraint
from unmask.constraints.vocabulary import Vocabulary
from unmask.errors import UnmaskError

LONGEST = 4096
"""Tokens up to which the shortest canvas that would do is looked for."""


def bind(constraints: Sequence[Constraint], vocabulary: Vocabulary, rows: Sequence[Sequence[int]]) -> Automaton:
    """The automaton of all constraints, after a look whether every row (masks where it is open) can satisfy it."""
    automata = [constraint.automaton(vocabulary) for constraint in constraints]
    whole = intersect(automata)
    for row in dict.fromkeys(tuple(row) for row in rows):
        if not can_accept(whole, row, vocabulary.mask):
            raise UnmaskError(_reason(constraints, automata, row, vocabulary.mask))
    return whole


def can_accept(automaton: Automaton, row: Sequence[int], mask: int) -> bool:
    """Whether the masks of a row can be written so that it is accepted; no position beyond it may be spoken of."""
    if len(automaton.gate) > len(row):
        return False
    gates, anywhere = automaton.gates(len(row)), _neighbours(automaton)
    reached = np.arange(automaton.states) == 0
    for position, token in enumerate(row):
        if token == mask and position >= len(automaton.gate):
            reached = anywhere[reached].any(axis=0)
            continue
        open_ = gates[position] if token == mask else gates[position] & (np.arange(automaton.kinds) == automaton.kind[token])
        after = automaton.move[reached][:, open_]
        reached = np.isin(np.arange(automaton.states), after)
    return bool((reached & automaton.accepts).any())


def _neighbours(automaton: Automaton) -> Bools:
    """[S, S] whether some token leads from one state to another."""
    near = np.zeros((automaton.states, automaton.states + 1), dtype=bool)
    near[np.arange(automaton.states)[:, None], automaton.move] = True
    return near[:, :-1]


def _reason(constraints: Sequence[Constraint], automata: list[Automaton], row: tuple[int, ...], mask: int) -> str:
    blank = [mask] * len(row)
    for constraint, automaton in zip(constraints, automata, strict=True):
        if len(automaton.gate) > len(row):
            last = len(automaton.gate) - 1
            return f"{constraint} speaks of position {last} and the canvas has {len(row)} tokens; lengthen the canvas."
        if not can_accept(automaton, blank, mask):
            return f"No canvas of {len(row)} tokens can satisfy {constraint}; {_remedy(automaton, len(row))}."
        if not can_accept(automaton, row, mask):
            return f"The given tokens contradict {constraint} on a canvas of {len(row)} tokens; change one of them."
    named = " and ".join(str(constraint) for constraint in constraints)
    return f"{named} cannot hold together on this canvas of {len(row)} tokens; drop one of them or change its length."


def _remedy(automaton: Automaton, length: int) -> str:
    shortest = automaton.shortest(LONGEST)
    if shortest is None:
        return "nothing does, so ask for something else"
    if shortest > length:
        return f"the shortest that can has {shortest}, so ask for a longer one"
    return "ask for another length"
