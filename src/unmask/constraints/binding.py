"""Constraints on canvases: one automaton of all, or one sentence that says why no canvas can satisfy them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unmask.constraints.automaton import Automaton, Bools, intersect, shown
from unmask.constraints.members import Constraint
from unmask.constraints.vocabulary import Vocabulary
from unmask.errors import UnmaskError

LONGEST = 1024
"""Tokens up to which a canvas that would do is looked for."""


def bind(constraints: Sequence[Constraint], vocabulary: Vocabulary, rows: Sequence[Sequence[int]]) -> Automaton:
    """The automaton of all constraints, after a look whether every row (masks where it is open) can satisfy it."""
    longest = max(map(len, rows), default=None)
    asked = constraints if longest is None else [one.within(longest, vocabulary) for one in constraints]
    automata = [constraint.automaton(vocabulary) for constraint in asked]
    whole = intersect(automata)
    for row in dict.fromkeys(tuple(row) for row in rows):
        if not can_accept(whole, row, vocabulary.mask):
            raise UnmaskError(_reason(constraints, automata, row, vocabulary.mask))
    return whole


def can_accept(automaton: Automaton, row: Sequence[int], mask: int) -> bool:
    """Whether the masks of a row can be written so that it is accepted; no position beyond it may be spoken of."""
    if len(automaton.gate) > len(row):
        return False
    gates, kinds = automaton.gates(len(row)), np.arange(automaton.kinds)
    reached = _begin(automaton)
    for token, gate in zip(row, gates, strict=True):
        reached = automaton.reach(reached, gate if token == mask else gate & (kinds == automaton.kind[token]))
    return bool((reached & automaton.accepts).any())


def _begin(automaton: Automaton) -> Bools:
    return np.arange(automaton.states) == 0


def _reason(constraints: Sequence[Constraint], automata: list[Automaton], row: tuple[int, ...], mask: int) -> str:
    blank = [mask] * len(row)
    for constraint, automaton in zip(constraints, automata, strict=True):
        name = shown(constraint)
        if len(automaton.gate) > len(row):
            last = len(automaton.gate) - 1
            return f"{name} speaks of position {last} and the canvas has {len(row)} tokens; lengthen the canvas."
        if closed := _closed(automaton, len(row)):
            return f"{name} leaves no token that could stand at position {closed[0]}; allow one there."
        if not can_accept(automaton, blank, mask):
            return f"No canvas of {len(row)} tokens can satisfy {name}; {_remedy(automaton, len(row))}."
        if not can_accept(automaton, row, mask):
            return f"The given tokens contradict {name} on a canvas of {len(row)} tokens; change one of them."
    named = " and ".join(map(shown, constraints))
    return f"{named} cannot hold together on this canvas of {len(row)} tokens; drop one of them or change its length."


def _closed(automaton: Automaton, length: int) -> list[int]:
    """The positions of a canvas at which no token may stand, where only positions matter and not what stands around."""
    alone = automaton.states == 1 and automaton.accepts[0]
    return np.flatnonzero(~automaton.gates(length).any(axis=1)).tolist() if alone else []


def _remedy(automaton: Automaton, length: int) -> str:
    """What to do about a canvas that has the wrong length."""
    possible = _lengths(automaton, LONGEST)
    if not possible:
        return f"no other of up to {LONGEST} tokens could, so ask for something else"
    return f"the nearest length that can is {min(possible, key=lambda one: abs(one - length))}, so ask for that"


def _lengths(automaton: Automaton, limit: int) -> list[int]:
    """Tokens of the canvases, of at most so many, that can be accepted."""
    gates, reached = automaton.gates(limit), _begin(automaton)
    lengths = []
    for length, gate in enumerate(gates):
        if (reached & automaton.accepts).any() and length >= len(automaton.gate):
            lengths.append(length)
        if not reached.any():
            break
        reached = automaton.reach(reached, gate)
    return lengths
