"""Automata over the letters of a text, and how they read its bytes: UTF-8, letter by letter.

A `Letters` tells the letters that it names apart and takes all others for one. Tokens are bytes, and may end within a
letter; so the states of `Bytes` are a state between letters and what has been read of the next one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, reduce

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


UNICODE = 0x110000
BLOCKS = ((0x100, 0x800, 0x40), (0x800, 0x40000, 0x1000))
"""Where characters are taken by blocks of a size, which begin with the same bytes; behind the last are no letters."""


@cache
def of_words() -> Bools:
    """[0x110000] whether a character is a letter or a digit.

    Below U+0100 each is looked at alone. Beyond, a block is what most of it is: one by one they would need hundreds of
    states more, for the bytes of a letter that has begun, and as many times more as there are words.
    """
    found = np.zeros(UNICODE, dtype=bool)
    found[:0x100] = [chr(code).isalnum() for code in range(0x100)]
    for begin, end, size in BLOCKS:
        code = np.arange(begin, end)
        votes = np.bincount(code // size, weights=[_vote(chr(one)) for one in code])
        found[begin:end] = votes[code // size] > 0
    return found


def is_of_word(letter: str) -> bool:
    """Whether a character is a letter or a digit, as words see it."""
    return bool(of_words()[ord(letter)])


def _vote(letter: str) -> int:
    """1 for letters and digits, -1 for other signs, 0 for marks upon letters and for what is nothing."""
    return 1 if letter.isalnum() else -1 if unicodedata.category(letter)[0] in "PSZ" else 0


ANY = 0
"""The kind of the letters without a name."""
SURROGATES = slice(0xD800, 0xE000)


@dataclass(frozen=True)
class Letters:
    """`kinds` of named letters (others are of kind 0), `move` [Q, C] from state 0, -1 for none, `accepts` [Q].

    Those of the others that can be part of a word are of kind `of_words`.
    """

    kinds: dict[str, int]
    move: Ints
    accepts: Bools
    of_words: int = ANY


@dataclass(frozen=True)
class Bytes:
    """`alike` has the kind of each byte, `move` [S, C] the state after each kind, -1 for none.

    `accepts` [S]: only between two letters.
    """

    alike: bytes
    move: Ints
    accepts: Bools


def counting(low: int, high: int | None) -> Letters:
    """At least `low` and at most `high` letters, or any number more."""
    last = low if high is None else high
    check_size(last + 1, 1)
    move = np.arange(1, last + 2)[:, None]
    move[last] = last if high is None else -1
    return Letters({}, move, np.arange(last + 1) >= low)


def read_bytes(letters: Letters) -> Bytes:
    """The automaton that reads the UTF-8 bytes of what `letters` reads; text that is not UTF-8 is not accepted.

    State q P + b has read the whole letters up to state q, and the beginning b of another; beginning 0 is none.
    """
    letters = _merge_letter_kinds(letters)
    (begun, kind), alike = _merge_bytes(*_spell(_kind_of_every(letters)))
    size, whole = len(begun), np.maximum(kind, 0)
    check_size(len(letters.move) * size, kind.shape[1])
    after = letters.move[:, whole]
    ended = np.where(after >= 0, after * size, -1)
    going = np.where(begun >= 0, np.arange(len(letters.move))[:, None, None] * size + begun, -1)
    move = np.where(kind >= 0, ended, going).reshape(-1, kind.shape[1])
    accepts = np.zeros((len(letters.move), size), dtype=bool)
    accepts[:, 0] = letters.accepts
    return Bytes(alike, move, accepts.reshape(-1))


def _merge_letter_kinds(letters: Letters) -> Letters:
    """The same automaton with one kind for letters that no state tells apart; those like the nameless have no name."""
    move, place = np.unique(letters.move, axis=1, return_inverse=True)
    place = place.reshape(-1)
    order = np.arange(move.shape[1])
    order[[ANY, place[ANY]]] = place[ANY], ANY
    kinds = {letter: int(order[place[kind]]) for letter, kind in letters.kinds.items()}
    return Letters(kinds, move[:, order], letters.accepts, int(order[place[letters.of_words]]))


def _kind_of_every(letters: Letters) -> Ints:
    """[0x110000] the kind of every letter there is, -1 for the halves of surrogate pairs."""
    kind = np.where(of_words(), letters.of_words, ANY) if letters.of_words != ANY else np.full(UNICODE, ANY)
    kind[[ord(letter) for letter in letters.kinds]] = list(letters.kinds.values())
    kind[SURROGATES] = -1
    return kind


def _merge_bytes(begun: Ints, kind: Ints) -> tuple[tuple[Ints, Ints], bytes]:
    """Tables [P, C] of kinds of bytes out of those [P, 256] of bytes, and the kind of every byte."""
    table, alike = np.unique(np.concatenate([begun, kind]), axis=1, return_inverse=True)
    return (table[: len(begun)], table[len(begun) :]), alike.reshape(-1).astype(np.uint8).tobytes()


def _spell(kind: Ints) -> tuple[Ints, Ints]:
    """[P, 256] the beginning of a letter after each byte, and the kind of the letter that it ends; -1 for none.

    Beginnings that go on alike are one: those that need one more byte come first, then those that need two and three.
    """
    ones, one = _distinct_rows(kind.reshape(-1, 64))
    one = np.where(ones.max(axis=1)[one] >= 0, one + 1, -1)
    shortest = np.where(np.arange(len(one)) < 0x800 // 64, -1, one)
    twos, two = _distinct_rows(shortest.reshape(-1, 64))
    two = two + 1 + len(ones)
    longest = np.full(5 * 64, -1)
    longest[16:272] = two[16:]
    threes, three = _distinct_rows(longest.reshape(5, 64))
    begun = np.full((1 + len(ones) + len(twos) + len(threes), 256), -1)
    ended = np.full_like(begun, -1)
    begun[0, 0xC2:0xE0], begun[0, 0xE0:0xF0] = one[2:32], two[:16]
    begun[0, 0xF0:0xF5] = three + 1 + len(ones) + len(twos)
    begun[1 + len(ones) :, 0x80:0xC0] = np.concatenate([twos, threes])
    ended[0, :0x80], ended[1 : 1 + len(ones), 0x80:0xC0] = kind[:0x80], ones
    return begun, ended


def _distinct_rows(table: Ints) -> tuple[Ints, Ints]:
    """The different rows of a table [N, 64], and which of them each is; random sums tell them apart."""
    sums = table @ np.random.default_rng(0).integers(1 << 62, size=64)
    _, first, place = np.unique(sums, return_index=True, return_inverse=True)
    return table[first], place.reshape(-1)
