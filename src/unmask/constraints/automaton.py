"""Deterministic finite automata (DFAs): over token classes, over characters, and over the UTF-8 bytes of characters.

Symbols with the same transitions form one class: tokens in an `Automaton`, characters in a `CharacterDFA`, bytes in a
`ByteDFA`. A token may end inside a character, so a state of a `ByteDFA` is a state of the `CharacterDFA` together with
the bytes read so far of the next character.
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

MAX_TRANSITIONS = 1 << 23
"""The largest number of entries of a transition table."""
NFA_CLASSES = 64
"""Classes of characters that the size of an `NFA` is checked for."""
MAX_SHOWN = 160
"""Characters of a constraint that an error message shows."""


# ---- automata over tokens -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Automaton:
    """A DFA that reads the tokens of a canvas from state 0 and accepts it if it ends in an accepting state.

    `token_class` [V] is -1 for tokens that are never accepted. `transitions` [S, C] is the state after a token of each
    class, -1 if nothing can be accepted then. `accepting` [S]. `allowed` [P, C] are the classes allowed at each of the
    first P positions; after them all classes are.
    """

    token_class: Ints
    transitions: Ints
    accepting: Bools
    allowed: Bools

    @property
    def classes(self) -> int:
        return self.transitions.shape[1]

    @property
    def states(self) -> int:
        return self.transitions.shape[0]

    def allowed_at(self, length: int) -> Bools:
        """[L, C] the token classes allowed at each position of a canvas."""
        allowed = self.allowed[:length]
        return np.concatenate([allowed, np.ones((length - len(allowed), self.classes), dtype=bool)])

    def successors(self, reached: Bools, classes: Bools) -> Bools:
        """[S] the states after one token of some classes [C], from some states [S]."""
        after = self.transitions[reached][:, classes]
        return np.bincount(after[after >= 0], minlength=self.states) > 0


def position_automaton(token_class: Ints, allowed: Bools) -> Automaton:
    """The automaton with one state, which compares each position with `allowed` [P, C]."""
    classes = allowed.shape[1]
    return simplify(Automaton(token_class, np.zeros((1, classes), dtype=np.int64), np.ones(1, dtype=bool), allowed))


def simplify(automaton: Automaton) -> Automaton:
    """The same automaton without states that never accept, and with as few token classes as possible."""
    alive = _accepting_ahead(automaton.transitions, automaton.accepting)
    alive[0] = True
    number = np.where(alive, np.cumsum(alive) - 1, -1)
    transitions = automaton.transitions
    transitions = np.where(transitions >= 0, number[transitions], -1)[alive]
    return _merge_token_classes(replace(automaton, transitions=transitions, accepting=automaton.accepting[alive]))


def minimise(automaton: Automaton) -> Automaton:
    """The same automaton with the fewest states, if nothing depends on positions.

    Groups of states are split by the groups that their transitions lead to, until none splits. Random sums identify
    rows.
    """
    own, *weights = np.random.default_rng(0).integers(1 << 62, size=1 + automaton.classes)
    _, first, group = np.unique(automaton.accepting, return_index=True, return_inverse=True)
    groups = 0
    while len(first) > groups:
        groups = len(first)
        after = np.where(automaton.transitions >= 0, group[automaton.transitions] + 1, 0)
        sums = after @ np.array(weights, dtype=np.int64) + group * own
        _, first, group = np.unique(sums, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    group, first = order[group], np.sort(first)
    transitions = automaton.transitions[first]
    transitions = np.where(transitions >= 0, group[transitions], -1)
    return simplify(replace(automaton, transitions=transitions, accepting=automaton.accepting[first]))


def intersect(automata: list[Automaton]) -> Automaton:
    """The automaton that accepts what all of them accept; small ones are combined first."""
    return reduce(_product, sorted(automata, key=lambda one: one.states))


def _product(one: Automaton, other: Automaton) -> Automaton:
    """The product automaton, with the pair of states (a, b) numbered a S' + b until it is renumbered."""
    live = (one.token_class >= 0) & (other.token_class >= 0)
    classes = np.stack([one.token_class[live], other.token_class[live]])
    (left, right), index = np.unique(classes, axis=1, return_inverse=True)
    token_class = np.full(len(live), -1)
    token_class[live] = index.reshape(-1)
    from_one, from_other = one.transitions[:, left], other.transitions[:, right]

    def step(pairs: Ints) -> Ints:
        a, b = from_one[pairs // other.states], from_other[pairs % other.states]
        return np.where((a >= 0) & (b >= 0), a * other.states + b, -1)

    pairs, transitions = explore(step, 0)
    accepting = one.accepting[pairs // other.states] & other.accepting[pairs % other.states]
    length = max(len(one.allowed), len(other.allowed))
    allowed = one.allowed_at(length)[:, left] & other.allowed_at(length)[:, right]
    return simplify(Automaton(token_class, transitions, accepting, allowed))


def explore(step: Callable[[Ints], Ints], start: int) -> tuple[Ints, Ints]:
    """All states reachable from `start`, itself first, and their transitions [S, C] renumbered.

    `step` maps states [N] to the states [N, C] after each class, -1 for none.
    """
    found = new = known = np.array([start])
    tables = []
    while len(new):
        tables.append(step(new))
        after = np.unique(tables[-1])
        place = np.searchsorted(known, after)
        fresh = (after >= 0) & (known[np.minimum(place, len(known) - 1)] != after)
        new, known = after[fresh], np.insert(known, place[fresh], after[fresh])
        found = np.concatenate([found, new])
        check_size(len(found), tables[-1].shape[1])
    table = np.concatenate(tables)
    number = np.argsort(found)[np.searchsorted(known, np.where(table >= 0, table, start))]
    return found, np.where(table >= 0, number, -1)


def check_size(states: int, classes: int) -> None:
    """Raise `UnmaskError` before a transition table becomes too large."""
    if states * classes > MAX_TRANSITIONS:
        raise UnmaskError(
            f"The constraint needs at least {states} states for {classes} classes of tokens or characters, which is "
            "too many; simplify it."
        )


def shorten(value: object) -> str:
    """The repr of a value for an error message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _accepting_ahead(transitions: Ints, accepting: Bools) -> Bools:
    """[S] whether an accepting state can be reached, by a search backwards from the accepting states."""
    source, symbol = np.nonzero(transitions >= 0)
    order = np.argsort(transitions[source, symbol], kind="stable")
    target = transitions[source, symbol][order]
    source, first = source[order], np.searchsorted(target, np.arange(len(transitions) + 1))
    found, new = accepting.copy(), np.flatnonzero(accepting)
    while len(new):
        counts = first[new + 1] - first[new]
        arcs = np.repeat(first[new] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        before = np.unique(source[arcs])
        new = before[~found[before]]
        found[new] = True
    return found


def _merge_token_classes(automaton: Automaton) -> Automaton:
    """Merge classes with equal transitions and positions; drop those that lead nowhere or have no token."""
    columns = np.concatenate([automaton.transitions, automaton.allowed])
    _, first, index = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    index, has_token = index.reshape(-1), np.zeros(len(first), dtype=bool)
    has_token[index[automaton.token_class[automaton.token_class >= 0]]] = True
    used = has_token & (automaton.transitions[:, first] >= 0).any(axis=0)
    number = np.where(used, np.cumsum(used) - 1, -1)[index]
    token_class = automaton.token_class
    if len(number):
        token_class = np.where(token_class >= 0, number[token_class], -1)
    first = first[used]
    return Automaton(token_class, automaton.transitions[:, first], automaton.accepting, automaton.allowed[:, first])


# ---- automata over characters ---------------------------------------------------------------------------------------

UNICODE = 0x110000
SURROGATES = slice(0xD800, 0xE000)
BLOCKS = ((0x100, 0x800, 0x40), (0x800, 0x40000, 0x1000))
"""(begin, end, size): ranges of characters that are classified by blocks, whose first UTF-8 bytes are the same."""
OTHER = 0
"""The class of characters that a DFA does not name."""


@cache
def word_characters() -> Bools:
    """[0x110000] whether a character is a letter or a digit.

    Above U+00FF all characters of a block count as what most of them are: a decision per character would multiply the
    states for partly read characters.
    """
    is_word = np.zeros(UNICODE, dtype=bool)
    is_word[:0x100] = [chr(code).isalnum() for code in range(0x100)]
    for begin, end, size in BLOCKS:
        code, characters = np.arange(begin, end), [chr(code) for code in range(begin, end)]
        votes = [1 if c.isalnum() else -1 if unicodedata.category(c)[0] in "PSZ" else 0 for c in characters]
        is_word[begin:end] = np.bincount(code // size, weights=votes)[code // size] > 0
    return is_word


@dataclass(frozen=True)
class CharacterDFA:
    """A DFA over characters: `classes` of the characters it names, `transitions` [Q, C] from state 0, `accepting` [Q].

    All other characters are of class 0, except that letters and digits among them are of class `word_class`.
    """

    classes: dict[str, int]
    transitions: Ints
    accepting: Bools
    word_class: int = OTHER


class NFA:
    """A nondeterministic automaton over characters, built from state 0 on."""

    def __init__(self) -> None:
        self.edges: list[list[tuple[str, int]]] = [[]]
        """The edges of each state: characters and the state that they lead to."""
        self.others: list[list[tuple[str, int]]] = [[]]
        """The same for edges with all characters except the given ones."""
        self.skips: list[list[int]] = [[]]
        """The states that are reached from each state without a character."""

    def state(self) -> int:
        """Add a state and return its number."""
        check_size(len(self.edges), NFA_CLASSES)
        for edges in (self.edges, self.others, self.skips):
            edges.append([])
        return len(self.edges) - 1

    def add(self, at: int, characters: str, to: int | None = None) -> int:
        """Add an edge for these characters and return the state that it leads to."""
        to = self.state() if to is None else to
        self.edges[at].append((characters, to))
        return to

    def add_others(self, at: int, characters: str) -> int:
        """Add an edge for all characters except these to a new state and return it."""
        to = self.state()
        self.others[at].append((characters, to))
        return to

    def skip(self, at: int, to: int) -> None:
        """Make `to` reachable from `at` without a character."""
        self.skips[at].append(to)

    def text(self, at: int, text: str) -> int:
        """The state after a text."""
        for character in text:
            at = self.add(at, character)
        return at

    def join(self, *states: int) -> int:
        """Add a state that is reached from each of these without a character and return it."""
        to = self.state()
        for state in states:
            self.skip(state, to)
        return to

    def embed(self, at: int, dfa: CharacterDFA) -> int:
        """The state after a text that a DFA without `word_class` accepts."""
        end, number = self.state(), [self.join(at), *(self.state() for _ in dfa.transitions[1:])]
        named = "".join(dfa.classes)
        characters = {one: "".join(c for c, name in dfa.classes.items() if name == one) for one in dfa.classes.values()}
        for state, one in np.argwhere(dfa.transitions >= 0).tolist():
            to = number[dfa.transitions[state, one]]
            if one in characters:
                self.add(number[state], characters[one], to)
            if one == OTHER:
                self.others[number[state]].append((named, to))
        for state in np.flatnonzero(dfa.accepting).tolist():
            self.skip(number[state], end)
        return end

    def determinise(self, end: int) -> CharacterDFA:
        """The DFA of the texts that lead from state 0 to `end`."""
        named = {one for edges in (self.edges, self.others) for state in edges for text, _ in state for one in text}
        classes = {character: number for number, character in enumerate(sorted(named), start=1)}
        found, rows = {self._closure([0]): 0}, []
        waiting = list(found)
        for states in waiting:
            others = [(set(text), to) for state in states for text, to in self.others[state]]
            after: dict[str, list[int]] = {character: [] for text, _ in others for character in text}
            for text, to in (edge for state in states for edge in self.edges[state]):
                for character in text:
                    after.setdefault(character, []).append(to)
            row = np.full(len(classes) + 1, self._find([to for _, to in others], found, waiting))
            for character, ends in after.items():
                ends += [to for text, to in others if character not in text]
                row[classes[character]] = self._find(ends, found, waiting)
            rows.append(row)
            check_size(len(found), len(row))
        return CharacterDFA(classes, np.array(rows), np.array([end in states for states in waiting]))

    def _find(self, ends: list[int], found: dict[frozenset[int], int], waiting: list[frozenset[int]]) -> int:
        """The number of a set of states, -1 for none; a new one waits to be followed."""
        if not ends:
            return -1
        closure = self._closure(ends)
        if closure not in found:
            found[closure] = len(found)
            waiting.append(closure)
        return found[closure]

    def _closure(self, states: list[int]) -> frozenset[int]:
        """The states that are reached from these without a character."""
        reached, waiting = set(states), list(states)
        for state in waiting:
            new = set(self.skips[state]) - reached
            reached |= new
            waiting += new
        return frozenset(reached)


def length_dfa(low: int, high: int | None) -> CharacterDFA:
    """Accepts texts of `low` to `high` characters (None: no upper limit)."""
    last = low if high is None else high
    check_size(last + 1, 1)
    transitions = np.arange(1, last + 2)[:, None]
    transitions[last] = last if high is None else -1
    return CharacterDFA({}, transitions, np.arange(last + 1) >= low)


def count_dfa(characters: str, low: int, high: int | None) -> CharacterDFA:
    """Accepts texts with `low` to `high` (None: no upper limit) of some characters: state i has read i of them."""
    last = low if high is None else high
    check_size(last + 1, 2)
    stay = np.arange(last + 1)
    more = stay + 1
    more[last] = last if high is None else -1
    return CharacterDFA(dict.fromkeys(characters, 1), np.stack([stay, more], axis=1), stay >= low)


# ---- automata over bytes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ByteDFA:
    """A DFA over UTF-8 bytes: `byte_class` [256], `transitions` [S, C], `accepting` [S] only between characters."""

    byte_class: bytes
    transitions: Ints
    accepting: Bools


def to_byte_dfa(dfa: CharacterDFA) -> ByteDFA:
    """The DFA over UTF-8 bytes of a DFA over characters; invalid UTF-8 is not accepted.

    State q P + b has read whole characters up to state q and then the prefix b of another; prefix 0 is empty.
    """
    dfa = _merge_character_classes(dfa)
    character_class = np.full(UNICODE, OTHER)
    if dfa.word_class != OTHER:
        character_class = np.where(word_characters(), dfa.word_class, OTHER)
    character_class[[ord(character) for character in dfa.classes]] = list(dfa.classes.values())
    character_class[SURROGATES] = -1
    prefix, complete = _utf8_tables(character_class)
    table, byte_class = np.unique(np.concatenate([prefix, complete]), axis=1, return_inverse=True)
    prefix, complete = table[: len(prefix)], table[len(prefix) :]
    states, prefixes = len(dfa.transitions), len(prefix)
    check_size(states * prefixes, complete.shape[1])
    after = dfa.transitions[:, np.maximum(complete, 0)]
    whole = np.where(after >= 0, after * prefixes, -1)
    partial = np.where(prefix >= 0, np.arange(states)[:, None, None] * prefixes + prefix, -1)
    transitions = np.where(complete >= 0, whole, partial).reshape(-1, complete.shape[1])
    accepting = np.zeros((states, prefixes), dtype=bool)
    accepting[:, 0] = dfa.accepting
    return ByteDFA(byte_class.reshape(-1).astype(np.uint8).tobytes(), transitions, accepting.reshape(-1))


def _merge_character_classes(dfa: CharacterDFA) -> CharacterDFA:
    """Merge classes with the same transitions; class 0 keeps its number."""
    transitions, index = np.unique(dfa.transitions, axis=1, return_inverse=True)
    index = index.reshape(-1)
    order = np.arange(transitions.shape[1])
    order[[OTHER, index[OTHER]]] = index[OTHER], OTHER
    classes = {character: int(order[index[number]]) for character, number in dfa.classes.items()}
    return CharacterDFA(classes, transitions[:, order], dfa.accepting, int(order[index[dfa.word_class]]))


def _utf8_tables(character_class: Ints) -> tuple[Ints, Ints]:
    """[P, 256] the prefix of a character after each byte, and [P, 256] the class of a completed character; -1: none.

    Prefixes with the same continuations are merged: first those that lack one byte, then two, then three.
    """
    ones, one = _distinct_rows(character_class.reshape(-1, 64))
    one = np.where(ones.max(axis=1)[one] >= 0, one + 1, -1)
    shortest = np.where(np.arange(len(one)) < 0x800 // 64, -1, one)
    twos, two = _distinct_rows(shortest.reshape(-1, 64))
    two = two + 1 + len(ones)
    longest = np.full(5 * 64, -1)
    longest[16:272] = two[16:]
    threes, three = _distinct_rows(longest.reshape(5, 64))
    prefix = np.full((1 + len(ones) + len(twos) + len(threes), 256), -1)
    complete = np.full_like(prefix, -1)
    prefix[0, 0xC2:0xE0], prefix[0, 0xE0:0xF0] = one[2:32], two[:16]
    prefix[0, 0xF0:0xF5] = three + 1 + len(ones) + len(twos)
    prefix[1 + len(ones) :, 0x80:0xC0] = np.concatenate([twos, threes])
    complete[0, :0x80], complete[1 : 1 + len(ones), 0x80:0xC0] = character_class[:0x80], ones
    return prefix, complete


def _distinct_rows(table: Ints) -> tuple[Ints, Ints]:
    """The distinct rows of a table [N, 64], and the index of each row among them; random sums identify rows."""
    sums = table @ np.random.default_rng(0).integers(1 << 62, size=64)
    _, first, index = np.unique(sums, return_index=True, return_inverse=True)
    return table[first], index.reshape(-1)
