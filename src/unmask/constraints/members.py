"""Constraints on canvases: one automaton of all, or one sentence that says why no canvas can satisfy them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from unmask.constraints.automaton import (
    Automaton,
    Bools,
    Ints,
    Letters,
    check_size,
    counting,
    fewest_states,
    intersect,
    is_of_word,
    one_state,
    shown,
    tidy,
)
from unmask.constraints.regex import matching
from unmask.constraints.vocabulary import Vocabulary, lift
from unmask.errors import UnmaskError

Search = tuple[bool, frozenset[int]]
"""Whether the last letter was part of a word, and how many letters of the word each beginning of it has matched."""
FOUND: Search = (False, frozenset([-1]))


def containing(word: str, absent: bool = False) -> Letters:
    """A word somewhere in the text, or nowhere: state i has read the first i letters of it."""
    kinds = {letter: kind for kind, letter in enumerate(dict.fromkeys(word), start=1)}
    move = search_moves([kinds[letter] for letter in word], len(kinds) + 1)
    found = np.arange(len(word) + 1) == len(word)
    return Letters(kinds, np.where(found[move], -1, move), ~found) if absent else Letters(kinds, move, found)


def search_moves(word: list[int], kinds: int) -> Ints:
    """[n + 1, kinds] the moves of a search for a word of n symbols; it stays at n when it has been found."""
    move = np.zeros((len(word) + 1, kinds), dtype=np.int64)
    fallback = 0
    for state, symbol in enumerate(word):
        move[state] = move[fallback]
        move[state, symbol] = state + 1
        fallback = move[fallback, symbol] if state else 0
    move[len(word)] = len(word)
    return move


def standing_alone(word: str, absent: bool = False) -> Letters:
    """A word somewhere in the text, or nowhere, with no letter or digit beside its own first and last ones."""
    kinds = {letter: kind for kind, letter in enumerate(dict.fromkeys(word), start=1)}
    alphabet = [(None, False), *((letter, is_of_word(letter)) for letter in kinds), (None, True)]
    states: dict[Search, int] = {(False, frozenset()): 0}
    rows = []
    waiting = list(states)
    for state in waiting:
        after = [_read(word, state, letter, inside) for letter, inside in alphabet]
        for new in (one for one in after if one not in states):
            states[new] = len(states)
            waiting.append(new)
        rows.append([states[one] for one in after])
    move, found = np.array(rows), np.array([state == FOUND for state in states])
    ends = np.array([state == FOUND or len(word) in state[1] for state in states])
    move = np.where(found[move], -1, move) if absent else move
    return Letters(kinds, move, ends ^ absent, len(kinds) + 1)


def _read(word: str, state: Search, letter: str | None, inside: bool) -> Search:
    """The search after one more letter, which is part of some word where it is `inside` one."""
    before, begun = state
    if state == FOUND or (len(word) in begun and not inside):
        return FOUND
    fresh = {0} if not (before and is_of_word(word[0])) else set()
    matched = frozenset(n + 1 for n in {*begun, *fresh} - {len(word)} if word[n] == letter)
    return FOUND if len(word) in matched and not is_of_word(word[-1]) else (inside, matched)


Token = int | str
"""A token by its id, or a word that is one token."""


class Constraint(ABC):
    """What a canvas may contain."""

    @abstractmethod
    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        """The automaton over the tokens of a vocabulary."""

    def within(self, length: int, vocabulary: Vocabulary, limit: int) -> Constraint:
        """What asks the same of canvases of at most so many tokens, and may be easier to work with.

        The model sees `limit`, which an error may have to say.
        """
        return self


@dataclass(frozen=True)
class Regex(Constraint):
    """The whole text, prompt included, matches a regular expression (Python's, classes such as \\w in ASCII)."""

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise UnmaskError(f"{self.pattern!r} is no regular expression; give one as a string.")

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return lift(matching(self.pattern), vocabulary)


@dataclass(frozen=True)
class Characters(Constraint):
    """The text has from `low` to `high` characters (`None`: any number more)."""

    low: int
    high: int | None

    def __post_init__(self) -> None:
        bounds = [self.low] if self.high is None else [self.low, self.high]
        if not all(isinstance(one, Integral) for one in bounds) or not 0 <= min(bounds) == self.low:
            raise UnmaskError(f"A text of {self.low} to {self.high} characters cannot be; give 0 <= low <= high.")

    def within(self, length: int, vocabulary: Vocabulary, limit: int) -> Characters:
        most = length * vocabulary.longest
        if self.low > most:
            needed = -(-self.low // vocabulary.longest)
            least = f"at most {limit * vocabulary.longest} characters in {limit} tokens, all that this model sees"
            raise UnmaskError(
                f"No canvas of {length} tokens can satisfy {self}, since a token has at most {vocabulary.longest} "
                f"characters; ask for {f'{needed} tokens or for fewer characters' if needed <= limit else least}."
            )
        return Characters(self.low, None) if self.high is None or self.high >= most else self

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return lift(counting(self.low, self.high), vocabulary)


@dataclass(frozen=True, init=False)
class _Words(Constraint):
    """Words (in the text, however it is cut into tokens) or runs of token ids.

    A word is `whole`: no letter or digit stands beside a letter or digit that it begins or ends with. Otherwise it may
    be a part of another.
    """

    words: tuple[str | tuple[int, ...], ...]
    whole: bool = True

    def __init__(self, *words: str | Sequence[int], whole: bool = True) -> None:
        if not words or not all(isinstance(word, Sequence) and word for word in words):
            raise UnmaskError(f"{type(self).__name__} needs words that are not empty; name at least one.")
        object.__setattr__(self, "words", tuple(word if isinstance(word, str) else tuple(word) for word in words))
        object.__setattr__(self, "whole", whole)

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        absent, search = isinstance(self, NoWords), standing_alone if self.whole else containing
        return intersect(
            [
                fewest_states(lift(search(word, absent), vocabulary))
                if isinstance(word, str)
                else _run(vocabulary.tokens(word), vocabulary, absent)
                for word in self.words
            ]
        )


class Words(_Words):
    """Every one of these appears: whole words somewhere in the text, or runs of token ids on the canvas."""


class NoWords(_Words):
    """None of these appears: whole words anywhere in the text, or runs of token ids on the canvas."""


@dataclass(frozen=True)
class Allowed(Constraint):
    """Only these tokens, or this one, may stand at some positions (`None`: at all), counted from 0 on the canvas."""

    tokens: Token | Sequence[Token]
    positions: Sequence[int] | None = None

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return _at_positions(_among(self.tokens, vocabulary), self.positions, vocabulary)


@dataclass(frozen=True)
class Banned(Constraint):
    """These tokens, or this one, may not stand at some positions (`None`: at any), counted from 0 on the canvas."""

    tokens: Token | Sequence[Token]
    positions: Sequence[int] | None = None

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return _at_positions(~_among(self.tokens, vocabulary), self.positions, vocabulary)


@dataclass(frozen=True)
class Fixed(Constraint):
    """These tokens stand at these positions, counted from 0 on the canvas."""

    tokens: Mapping[int, Token]

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, Mapping):
            raise UnmaskError(f"Fixed({shown(self.tokens)}) names no positions; give {{position: token}}.")

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return _gated({position: _among([token], vocabulary) for position, token in self.tokens.items()}, vocabulary)


def as_constraints(asked: Constraint | Sequence[Constraint]) -> list[Constraint]:
    """The constraints that a user asks for: one or several."""
    constraints = list(asked) if isinstance(asked, Sequence) else [asked]
    if not constraints or not all(isinstance(one, Constraint) for one in constraints):
        raise UnmaskError(f"{asked!r} is no constraint; give one of unmask.constraints, or a list of them.")
    return constraints


def _among(tokens: Token | Sequence[Token], vocabulary: Vocabulary) -> Bools:
    """[V] whether a token is one of these; a lone string is one token, not its letters."""
    named = [tokens] if isinstance(tokens, str) or not isinstance(tokens, Iterable) else tokens
    return np.isin(np.arange(vocabulary.size), vocabulary.tokens(named))


def _at_positions(allowed: Bools, positions: Sequence[int] | None, vocabulary: Vocabulary) -> Automaton:
    if positions is not None:
        if not isinstance(positions, Iterable):
            raise UnmaskError(f"positions={positions!r} is no list of places on a canvas; give one, such as [0].")
        return _gated(dict.fromkeys(positions, allowed), vocabulary)
    kind = np.where(allowed & (np.arange(vocabulary.size) != vocabulary.mask), 0, -1)
    return one_state(kind, np.ones((0, 1), dtype=bool))


def _gated(allowed: Mapping[int, Bools], vocabulary: Vocabulary) -> Automaton:
    """The automaton of the tokens [V] that are allowed at some positions; at others all are."""
    if not allowed or not all(isinstance(one, Integral) and one >= 0 for one in allowed):
        raise UnmaskError(f"The positions {shown(list(allowed))} are not on a canvas; give numbers, counted from 0.")
    tokens, kind = np.unique(np.stack(list(allowed.values())), axis=1, return_inverse=True)
    check_size(max(allowed) + 1, tokens.shape[1])
    gate = np.ones((max(allowed) + 1, tokens.shape[1]), dtype=bool)
    gate[list(allowed)] = tokens
    return one_state(np.where(np.arange(vocabulary.size) == vocabulary.mask, -1, kind.reshape(-1)), gate)


def _run(tokens: list[int], vocabulary: Vocabulary, absent: bool) -> Automaton:
    """A run of tokens somewhere on the canvas, or nowhere."""
    kinds = {token: kind for kind, token in enumerate(dict.fromkeys(tokens), start=1)}
    move = search_moves([kinds[token] for token in tokens], len(kinds) + 1)
    kind = np.zeros(vocabulary.size, dtype=np.int64)
    kind[list(kinds)] = list(kinds.values())
    kind[vocabulary.mask] = -1
    found = np.arange(len(tokens) + 1) == len(tokens)
    move, accepts = (np.where(found[move], -1, move), ~found) if absent else (move, found)
    return tidy(Automaton(kind, move, accepts, np.ones((0, len(kinds) + 1), dtype=bool)))


LONGEST = 1024
"""Tokens up to which a canvas that would do is looked for, where a model does not see fewer."""


class CompiledConstraints:
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


def compile_constraints(
    constraints: Sequence[Constraint], vocabulary: Vocabulary, rows: Sequence[Sequence[int]], limit: int = LONGEST
) -> Automaton:
    """The automaton of all constraints, after a look whether every row (masks where it is open) can satisfy it."""
    terms = CompiledConstraints(constraints, vocabulary, max(map(len, rows), default=None), limit)
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


def masks_before_text(row: Sequence[int], mask: int, end: int) -> Bools:
    """[L] the masks of a row that stand before a given token that is no end: they are in the middle of the text."""
    ids = np.array(row, dtype=np.int64)
    given = (ids != mask) & (ids != end)
    return (ids == mask) & (given[::-1].cumsum()[::-1] > 0)


def _open(automaton: Automaton, row: Sequence[int], mask: int, end: int) -> Bools:
    """[L, K] the kinds of tokens with which each position of a row can be written."""
    ids, kinds = np.array(row, dtype=np.int64), np.arange(automaton.kinds)
    no_end = np.isin(kinds, automaton.kind[np.arange(len(automaton.kind)) != end])
    written = ~masks_before_text(row, mask, end)[:, None] | no_end
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
