"""The one concept: a deterministic automaton that reads the tokens of a canvas. NumPy alone; nobody is imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from unmask.errors import UnmaskError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Moves = Callable[[Ints], Ints]
"""Takes states [N] to the states [N, K] after each kind of token, -1 for none."""

LARGEST = 1 << 23
"""Entries of a table of moves, from which on an automaton is too large to work with."""
SHOWN = 160
"""Characters of an error that what was asked for may take up."""


@dataclass(frozen=True)
class Automaton:
    """Reads a canvas from state 0 and accepts it when it ends in an accepting state.

    Tokens that lead to the same states from every state, at every position, are of one kind: `kind` [V], -1 for a token
    that is never accepted. `move` [S, K] is the state after a token of each kind, -1 where it ends all hope; `accepts`
    [S]. `gate` [P, K] says which kinds may stand at the first P positions, behind which all may.
    """

    kind: Ints
    move: Ints
    accepts: Bools
    gate: Bools

    @property
    def kinds(self) -> int:
        """How many kinds of tokens there are."""
        return self.move.shape[1]

    @property
    def states(self) -> int:
        """How many states there are."""
        return self.move.shape[0]

    def gates(self, length: int) -> Bools:
        """[L, K] which kinds may stand at each position of a canvas."""
        gate = self.gate[:length]
        return np.concatenate([gate, np.ones((length - len(gate), self.kinds), dtype=bool)])

    def reach(self, reached: Bools, kinds: Bools) -> Bools:
        """[S] the states after one token of some kinds [K], from some states [S]."""
        after = self.move[reached][:, kinds]
        return np.bincount(after[after >= 0], minlength=self.states) > 0


def one_state(kind: Ints, gate: Bools) -> Automaton:
    """An automaton that looks at every position alone: what `gate` [P, K] lets through."""
    kinds = gate.shape[1]
    return tidy(Automaton(kind, np.zeros((1, kinds), dtype=np.int64), np.ones(1, dtype=bool), gate))


def tidy(automaton: Automaton) -> Automaton:
    """The same automaton without states that never accept and kinds that no token has, and with as few as possible."""
    return _merge_kinds(_trim(automaton))


def fewest_states(automaton: Automaton) -> Automaton:
    """The same automaton with one state for all from which the same is accepted, where nothing depends on positions.

    States are told apart by what their moves lead to, again and again; random sums stand for rows of the table.
    """
    own, *weights = np.random.default_rng(0).integers(1 << 62, size=1 + automaton.kinds)
    _, first, group = np.unique(automaton.accepts, return_index=True, return_inverse=True)
    groups = 0
    while len(first) > groups:
        groups = len(first)
        after = np.where(automaton.move >= 0, group[automaton.move] + 1, 0)
        sums = after @ np.array(weights, dtype=np.int64) + group * own
        _, first, group = np.unique(sums, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    group, first = order[group], np.sort(first)
    move = automaton.move[first]
    return tidy(replace(automaton, move=np.where(move >= 0, group[move], -1), accepts=automaton.accepts[first]))


def intersect(automata: list[Automaton]) -> Automaton:
    """The automaton that accepts what all of them accept; small ones are joined first."""
    return reduce(_product, sorted(automata, key=lambda one: one.states))


def _product(one: Automaton, other: Automaton) -> Automaton:
    kind, (left, right) = join_kinds(one.kind, other.kind)
    pairs, move = explore(_pair_moves(one.move[:, left], other.move[:, right]), 0)
    accepts = one.accepts[pairs // other.states] & other.accepts[pairs % other.states]
    length = max(len(one.gate), len(other.gate))
    gate = one.gates(length)[:, left] & other.gates(length)[:, right]
    return tidy(Automaton(kind, move, accepts, gate))


def join_kinds(one: Ints, other: Ints) -> tuple[Ints, tuple[Ints, Ints]]:
    """Kinds [V] finer than both, -1 where either is, and for each of them what it was in both, [K] and [K]."""
    lives = (one >= 0) & (other >= 0)
    pairs, place = np.unique(np.stack([one[lives], other[lives]]), axis=1, return_inverse=True)
    kind = np.full(len(one), -1)
    kind[lives] = place.reshape(-1)
    return kind, (pairs[0], pairs[1])


def _pair_moves(left: Ints, right: Ints) -> Moves:
    """The moves of pairs of states, pair (a, b) being number a S' + b."""
    size = len(right)

    def moves(pairs: Ints) -> Ints:
        a, b = left[pairs // size], right[pairs % size]
        return np.where((a >= 0) & (b >= 0), a * size + b, -1)

    return moves


def explore(moves: Moves, start: int) -> tuple[Ints, Ints]:
    """All states that can be reached from one, the first of them itself, and their moves [S, K] by these numbers."""
    found = new = known = np.array([start])
    tables = []
    while len(new):
        tables.append(moves(new))
        after = np.unique(tables[-1])
        place = np.searchsorted(known, after)
        fresh = (after >= 0) & (known[np.minimum(place, len(known) - 1)] != after)
        new, known = after[fresh], np.insert(known, place[fresh], after[fresh])
        found = np.concatenate([found, new])
        check_size(len(found), tables[-1].shape[1])
    table = np.concatenate(tables)
    number = np.argsort(found)[np.searchsorted(known, np.where(table >= 0, table, start))]
    return found, np.where(table >= 0, number, -1)


def check_size(states: int, kinds: int) -> None:
    """A table of moves that is too large to be worked with is an error, to be raised before there is one."""
    if states * kinds > LARGEST:
        raise UnmaskError(
            f"This constraint needs {states} states or more for {kinds} kinds of tokens or of their letters, too many "
            "to work with; ask for less at once."
        )


def _trim(automaton: Automaton) -> Automaton:
    """Moves into states from which nothing is accepted, however long the canvas, end all hope at once."""
    move, hope = automaton.move, _hopeful(automaton.move, automaton.accepts)
    hope[0] = True
    number = np.where(hope, np.cumsum(hope) - 1, -1)
    move = np.where(move >= 0, number[move], -1)[hope]
    return replace(automaton, move=move, accepts=automaton.accepts[hope])


def _hopeful(move: Ints, accepts: Bools) -> Bools:
    """[S] whether an accepting state can be reached, found from these backwards, every move once."""
    begin, kind = np.nonzero(move >= 0)
    order = np.argsort(move[begin, kind], kind="stable")
    begin, firsts = begin[order], np.searchsorted(move[begin, kind][order], np.arange(len(move) + 1))
    hope, new = accepts.copy(), np.flatnonzero(accepts)
    while len(new):
        counts = firsts[new + 1] - firsts[new]
        arcs = np.repeat(firsts[new] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        before = np.unique(begin[arcs])
        new = before[~hope[before]]
        hope[new] = True
    return hope


def _merge_kinds(automaton: Automaton) -> Automaton:
    """Kinds with equal moves and gates become one; those that lead nowhere, or that no token has, none."""
    columns = np.concatenate([automaton.move, automaton.gate])
    _, first, place = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    has_token = np.zeros(len(first), dtype=bool)
    has_token[place.reshape(-1)[automaton.kind[automaton.kind >= 0]]] = True
    leads = has_token & (automaton.move[:, first] >= 0).any(axis=0)
    number = np.where(leads, np.cumsum(leads) - 1, -1)[place.reshape(-1)]
    kind = np.where(automaton.kind >= 0, number[automaton.kind], -1) if len(number) else automaton.kind
    first = first[leads]
    return Automaton(kind, automaton.move[:, first], automaton.accepts, automaton.gate[:, first])


def shown(asked: object) -> str:
    """What was asked for as an error shows it; where it is long, its beginning."""
    text = repr(asked)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
