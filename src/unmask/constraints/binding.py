"""Constraints on canvases: one automaton of all, or one sentence that says why no canvas can satisfy them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unmask.constraints.automaton import Automaton, Bools, intersect, shown
from unmask.constraints.members import Constraint
from unmask.constraints.vocabulary import Vocabulary
from unmask.errors import UnmaskError

LONGEST = 1024
"""Tokens up to which a canvas that would do is looked for, where a model does not see fewer."""


class Terms:
    """Constraints on canvases of at most `longest` tokens (`None`: of any number), of a model that sees `limit`."""

    def __init__(
        self, constraints: Sequence[Constraint], vocabulary: Vocabulary, longest: int | None, limit: int = LONGEST
    ) -> None:
        asked = constraints if longest is None else [one.within(longest, vocabulary, limit) for one in constraints]
        self.constraints, self.limit = constraints, limit
        self.mask, self.end = vocabulary.mask, vocabulary.end
        self.automata = [constraint.automaton(vocabulary) for constraint in asked]
        self.whole = intersect(self.automata)

    def accept(self, row: Sequence[int]) -> bool:
        """Whether a row, with masks where it is open, can satisfy all of them."""
        return self._can_accept(self.whole, row)

    def _can_accept(self, automaton: Automaton, row: Sequence[int]) -> bool:
        return can_accept(automaton, row, self.mask, self.end)

    def reason(self, row: Sequence[int]) -> str:
        """Why a row cannot, and what to do about it."""
        size = len(row)
        for constraint, automaton in zip(self.constraints, self.automata, strict=True):
            name = shown(constraint)
            if (last := len(automaton.gate) - 1) >= size:
                return (
                    f"{name} speaks of position {last} and the canvas has {size} tokens; {_longer(last, self.limit)}."
                )
            if closed := _closed(automaton, size):
                return f"{name} leaves no token that could stand at position {closed[0]}; allow one there."
            if not self._can_accept(automaton, [self.mask] * size):
                return f"No canvas of {size} tokens can satisfy {name}; {_remedy(automaton, size, self.limit)}."
            if not self._can_accept(automaton, row):
                return f"The given tokens contradict {name} on a canvas of {size} tokens; change one of them."
        named = " and ".join(dict.fromkeys(map(shown, self.constraints)))
        return f"{named} cannot hold together on this canvas of {size} tokens; drop one of them or change its length."


def bind(
    constraints: Sequence[Constraint], vocabulary: Vocabulary, rows: Sequence[Sequence[int]], limit: int = LONGEST
) -> Automaton:
    """The automaton of all constraints, after a look whether every row (masks where it is open) can satisfy it."""
    terms = Terms(constraints, vocabulary, max(map(len, rows), default=None), limit)
    for row in dict.fromkeys(tuple(row) for row in rows):
        if not terms.accept(row):
            raise UnmaskError(terms.reason(row))
    return terms.whole


def can_accept(automaton: Automaton, row: Sequence[int], mask: int, end: int = -1) -> bool:
    """Whether the masks of a row can be written so that it is accepted; no position beyond it may be spoken of.

    Before given text none is written with the `end` of a text, if there is one.
    """
    if len(automaton.gate) > len(row):
        return False
    reached = _begin(automaton)
    for kinds in automaton.gates(len(row)) & _open(automaton, row, mask, end):
        reached = automaton.reach(reached, kinds)
    return bool((reached & automaton.accepts).any())


def before_text(row: Sequence[int], mask: int, end: int) -> Bools:
    """[L] the masks of a row that stand before a given token that is no end: they are in the middle of the text."""
    ids = np.array(row, dtype=np.int64)
    given = (ids != mask) & (ids != end)
    return (ids == mask) & (given[::-1].cumsum()[::-1] > 0)


def _open(automaton: Automaton, row: Sequence[int], mask: int, end: int) -> Bools:
    """[L, K] the kinds of tokens with which each position of a row can be written."""
    ids, kinds = np.array(row, dtype=np.int64), np.arange(automaton.kinds)
    no_end = np.isin(kinds, automaton.kind[np.arange(len(automaton.kind)) != end])
    written = ~before_text(row, mask, end)[:, None] | no_end
    return np.where((ids == mask)[:, None], written, automaton.kind[ids][:, None] == kinds)


def _begin(automaton: Automaton) -> Bools:
    return np.arange(automaton.states) == 0


def _closed(automaton: Automaton, length: int) -> list[int]:
    """The positions of a canvas at which no token may stand, where only positions matter and not what stands around."""
    alone = automaton.states == 1 and automaton.accepts[0]
    return np.flatnonzero(~automaton.gates(length).any(axis=1)).tolist() if alone else []


def _longer(last: int, limit: int) -> str:
    """What to do about a canvas that has no position `last`."""
    return "lengthen the canvas" if last < limit else f"name one below {limit}, all that this model sees"


def _remedy(automaton: Automaton, length: int, limit: int) -> str:
    """What to do about a canvas that has the wrong length."""
    longest = min(limit, LONGEST)
    possible = _lengths(automaton, longest)
    if not possible:
        seen = ", all that this model sees," if longest == limit else ""
        return f"no other of up to {longest} tokens{seen} could, so ask for something else"
    return f"the nearest length that can is {min(possible, key=lambda one: abs(one - length))}, so ask for that"


def _lengths(automaton: Automaton, longest: int) -> list[int]:
    """Tokens of the canvases, from one to so many, that can be accepted."""
    reached, lengths = _begin(automaton), []
    for length, gate in enumerate(automaton.gates(longest), start=1):
        reached = automaton.reach(reached, gate)
        if (reached & automaton.accepts).any() and length >= len(automaton.gate):
            lengths.append(length)
    return lengths
