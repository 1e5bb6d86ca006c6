"""The constraints, and their compilation into one automaton that the given rows can satisfy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from unmask.constraints.automaton import (
    Automaton,
    Bools,
    CharacterDFA,
    Ints,
    check_size,
    count_dfa,
    intersect,
    length_dfa,
    minimise,
    position_automaton,
    shorten,
    simplify,
    word_characters,
)
from unmask.constraints.json_schema import json_schema_dfa
from unmask.constraints.regex import regex_dfa
from unmask.constraints.vocabulary import Vocabulary, lift_to_tokens
from unmask.errors import UnmaskError

Token = int | str
"""A token by its id, or a word that is one token."""
MAX_LENGTH = 1024
"""The longest canvas, in tokens, that an error message suggests."""


class Constraint(ABC):
    """A condition on a canvas."""

    @abstractmethod
    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        """The automaton over the tokens of a vocabulary."""

    def for_length(self, length: int, vocabulary: Vocabulary, limit: int) -> Constraint:
        """An equivalent constraint for canvases of at most `length` tokens, whose automaton may be smaller.

        Error messages name `limit`, the length of the model.
        """
        return self


@dataclass(frozen=True)
class Regex(Constraint):
    """The whole text, prompt included, matches a regular expression (Python's, with classes such as \\w in ASCII)."""

    pattern: str

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str):
            raise UnmaskError(f"pattern must be a string, got {self.pattern!r}.")

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return lift_to_tokens(regex_dfa(self.pattern), vocabulary)


@dataclass(frozen=True)
class JsonSchema(Constraint):
    """The text, prompt included, is `prefix` followed by JSON that a schema (a dict or a JSON string) accepts.

    See `json_schema_dfa` for the JSON that can be written.
    """

    schema: Mapping[str, Any] | str
    prefix: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.schema, Mapping | str) or not isinstance(self.prefix, str):
            raise UnmaskError(
                f"JsonSchema needs a dict or a JSON string, and a prefix that is text, got {shorten(self)}."
            )
        self.dfa  # noqa: B018  (validates the schema)

    @cached_property
    def dfa(self) -> CharacterDFA:
        """The automaton over the characters of the text."""
        return json_schema_dfa(self.schema, self.prefix)

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return lift_to_tokens(self.dfa, vocabulary)


@dataclass(frozen=True)
class Characters(Constraint):
    """The text has `low` to `high` characters (`None`: no upper limit)."""

    low: int
    high: int | None

    def __post_init__(self) -> None:
        _check_bounds("Characters", self.low, self.high)

    def for_length(self, length: int, vocabulary: Vocabulary, limit: int) -> Characters:
        longest = vocabulary.longest
        if self.low > length * longest:
            needed = -(-self.low // longest)
            remedy = f"at most {limit * longest} characters in {limit} tokens, the length of this model"
            raise UnmaskError(
                f"No canvas of {length} tokens can satisfy {self}, since a token has at most {longest} characters; "
                f"ask for {f'{needed} tokens or for fewer characters' if needed <= limit else remedy}."
            )
        return Characters(self.low, None) if self.high is None or self.high >= length * longest else self

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return lift_to_tokens(length_dfa(self.low, self.high), vocabulary)


@dataclass(frozen=True)
class Count(Constraint):
    """The text has `low` to `high` (`None`: no upper limit) of these characters, such as 80 to 120 of G and C."""

    characters: str
    low: int
    high: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.characters, str) or not self.characters:
            raise UnmaskError(f"Count needs at least one character, got {self.characters!r}.")
        _check_bounds("Count", self.low, self.high)

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return lift_to_tokens(count_dfa(self.characters, self.low, self.high), vocabulary)


def _check_bounds(name: str, low: Any, high: Any) -> None:
    bounds = [low] if high is None else [low, high]
    if not all(isinstance(one, Integral) for one in bounds) or not 0 <= min(bounds) == low:
        raise UnmaskError(f"{name} needs integers 0 <= low <= high, got low={low} and high={high}.")


@dataclass(frozen=True, init=False)
class _WordList(Constraint):
    """Words of the text, however they are split into tokens, or sequences of token ids.

    A `whole` word that begins or ends with a letter or digit does not follow or precede another one. Otherwise a word
    may be part of a longer one.
    """

    words: tuple[str | tuple[int, ...], ...]
    whole: bool = True

    def __init__(self, *words: str | Sequence[int], whole: bool = True) -> None:
        if not words or not all(isinstance(word, Sequence) and word for word in words):
            raise UnmaskError(f"{type(self).__name__} needs at least one word, and no empty ones, got {words!r}.")
        object.__setattr__(self, "words", tuple(word if isinstance(word, str) else tuple(word) for word in words))
        object.__setattr__(self, "whole", whole)

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        absent, automata = isinstance(self, NoWords), []
        for word in self.words:
            if isinstance(word, str):
                dfa = whole_word_dfa(word, absent) if self.whole else CharacterDFA(*_search(word, absent))
                automata.append(minimise(lift_to_tokens(dfa, vocabulary)))
            else:
                automata.append(_token_sequence(vocabulary.tokens(word), vocabulary, absent))
        return intersect(automata)


class Words(_WordList):
    """All of these appear: whole words somewhere in the text, or sequences of token ids on the canvas."""


class NoWords(_WordList):
    """None of these appears: whole words anywhere in the text, or sequences of token ids on the canvas."""


@dataclass(frozen=True)
class Allowed(Constraint):
    """Only these tokens, or this one, may stand at `positions`, counted from 0 on the canvas (`None`: everywhere)."""

    tokens: Token | Sequence[Token]
    positions: Sequence[int] | None = None

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return _at_positions(_is_one_of(self.tokens, vocabulary), self.positions, vocabulary)


@dataclass(frozen=True)
class Banned(Constraint):
    """These tokens, or this one, may not stand at `positions`, counted from 0 on the canvas (`None`: anywhere)."""

    tokens: Token | Sequence[Token]
    positions: Sequence[int] | None = None

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        return _at_positions(~_is_one_of(self.tokens, vocabulary), self.positions, vocabulary)


@dataclass(frozen=True)
class Fixed(Constraint):
    """Tokens by position, counted from 0 on the canvas."""

    tokens: Mapping[int, Token]

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, Mapping):
            raise UnmaskError(f"Fixed needs a mapping {{position: token}}, got {shorten(self.tokens)}.")

    def automaton(self, vocabulary: Vocabulary) -> Automaton:
        allowed = {position: _is_one_of([token], vocabulary) for position, token in self.tokens.items()}
        return _by_position(allowed, vocabulary)


Constraints = Constraint | Sequence[Constraint] | None


def as_constraints(given: Constraint | Sequence[Constraint]) -> list[Constraint]:
    """A list of constraints from one or several."""
    constraints = list(given) if isinstance(given, Sequence) else [given]
    if not constraints or not all(isinstance(one, Constraint) for one in constraints):
        raise UnmaskError(f"constraint must be one of unmask.constraints or a list of them, got {given!r}.")
    return constraints


def _token_sequence(tokens: list[int], vocabulary: Vocabulary, absent: bool) -> Automaton:
    """A sequence of tokens somewhere on the canvas, or nowhere."""
    classes, transitions, accepting = _search(tokens, absent)
    token_class = np.zeros(vocabulary.size, dtype=np.int64)
    token_class[list(classes)] = list(classes.values())
    token_class[vocabulary.mask] = -1
    return simplify(Automaton(token_class, transitions, accepting, np.ones((0, len(classes) + 1), dtype=bool)))


def _search(word: Sequence[Any], absent: bool) -> tuple[dict[Any, int], Ints, Bools]:
    """A Knuth-Morris-Pratt search: the classes of its symbols, transitions [n + 1, C] and accepting states.

    State i has read the first i of the n symbols; all other symbols are of class 0.
    """
    classes = {symbol: number for number, symbol in enumerate(dict.fromkeys(word), start=1)}
    transitions = np.zeros((len(word) + 1, len(classes) + 1), dtype=np.int64)
    fallback = 0
    for state, symbol in enumerate(word):
        transitions[state] = transitions[fallback]
        transitions[state, classes[symbol]] = state + 1
        fallback = transitions[fallback, classes[symbol]] if state else 0
    transitions[len(word)] = len(word)
    found = np.arange(len(word) + 1) == len(word)
    if absent:
        return classes, np.where(found[transitions], -1, transitions), ~found
    return classes, transitions, found


WordSearch = tuple[bool, frozenset[int]]
"""Whether the last character was a letter or digit, and the lengths of all prefixes of the word that end with it."""
FOUND: WordSearch = (False, frozenset([-1]))


def whole_word_dfa(word: str, absent: bool) -> CharacterDFA:
    """A word somewhere in the text, or nowhere, as a whole word (see `_WordList`)."""
    is_word = {character: bool(word_characters()[ord(character)]) for character in word}
    classes = {character: number for number, character in enumerate(is_word, start=1)}
    alphabet = [(None, False), *is_word.items(), (None, True)]

    def read(state: WordSearch, character: str | None, inside: bool) -> WordSearch:
        after_letter, prefixes = state
        if state == FOUND or (len(word) in prefixes and not inside):
            return FOUND
        start = set() if after_letter and is_word[word[0]] else {0}
        longer = frozenset(n + 1 for n in {*prefixes, *start} - {len(word)} if word[n] == character)
        return FOUND if len(word) in longer and not is_word[word[-1]] else (inside, longer)

    states: dict[WordSearch, int] = {(False, frozenset()): 0}
    rows, waiting = [], list(states)
    for state in waiting:
        after = [read(state, character, inside) for character, inside in alphabet]
        for new in after:
            if new not in states:
                states[new] = len(states)
                waiting.append(new)
        rows.append([states[one] for one in after])
    transitions, found = np.array(rows), np.array([state == FOUND for state in states])
    at_end = np.array([state == FOUND or len(word) in state[1] for state in states])
    if absent:
        transitions = np.where(found[transitions], -1, transitions)
    return CharacterDFA(classes, transitions, at_end ^ absent, len(classes) + 1)


def _as_plain(value: Any) -> Any:
    """Arrays and tensors as lists or numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _is_one_of(tokens: Token | Sequence[Token], vocabulary: Vocabulary) -> Bools:
    """[V] whether a token is one of these; a string is one token."""
    tokens = _as_plain(tokens)
    named = [tokens] if isinstance(tokens, str) or not isinstance(tokens, Iterable) else tokens
    return np.isin(np.arange(vocabulary.size), vocabulary.tokens(named))


def _at_positions(allowed: Bools, positions: Sequence[int] | None, vocabulary: Vocabulary) -> Automaton:
    if positions is None:
        token_class = np.where(allowed & (np.arange(vocabulary.size) != vocabulary.mask), 0, -1)
        return position_automaton(token_class, np.ones((0, 1), dtype=bool))
    positions = _as_plain(positions)
    if not isinstance(positions, Iterable):
        raise UnmaskError(f"positions must be a list such as [0], got {positions!r}.")
    return _by_position(dict.fromkeys(positions, allowed), vocabulary)


def _by_position(allowed: Mapping[int, Bools], vocabulary: Vocabulary) -> Automaton:
    """The automaton for the tokens [V] allowed at some positions; elsewhere all are."""
    if not allowed or not all(isinstance(one, Integral) and one >= 0 for one in allowed):
        raise UnmaskError(f"positions must be integers of at least 0, got {shorten(list(allowed))}.")
    tokens, token_class = np.unique(np.stack(list(allowed.values())), axis=1, return_inverse=True)
    check_size(max(allowed) + 1, tokens.shape[1])
    table = np.ones((max(allowed) + 1, tokens.shape[1]), dtype=bool)
    table[list(allowed)] = tokens
    is_mask = np.arange(vocabulary.size) == vocabulary.mask
    return position_automaton(np.where(is_mask, -1, token_class.reshape(-1)), table)


class CompiledConstraints:
    """Constraints on canvases of at most `longest` tokens (`None`: any length), for a model of length `limit`."""

    def __init__(
        self, constraints: Sequence[Constraint], vocabulary: Vocabulary, longest: int | None, limit: int
    ) -> None:
        self.constraints, self.limit = constraints, limit
        self.mask, self.end = vocabulary.mask, vocabulary.end
        if longest is None:
            self.automata = [one.automaton(vocabulary) for one in constraints]
        else:
            self.automata = [one.for_length(longest, vocabulary, limit).automaton(vocabulary) for one in constraints]
        self.automaton = intersect(self.automata)

    def accept(self, row: Sequence[int]) -> bool:
        """Whether the masks of a row can be written so that it satisfies all constraints."""
        return can_accept(self.automaton, row, self.mask, self.end)

    def reason(self, row: Sequence[int]) -> str:
        """Why a row cannot satisfy the constraints, and what to do."""
        size, limit = len(row), self.limit
        for constraint, automaton in zip(self.constraints, self.automata, strict=True):
            name = shorten(constraint)
            if (last := len(automaton.allowed) - 1) >= size:
                remedy = "lengthen the canvas" if last < limit else f"name one below {limit}, the length of this model"
                return f"{name} names position {last}, but the canvas has {size} tokens; {remedy}."
            if automaton.states == 1 and automaton.accepting[0]:
                empty = np.flatnonzero(~automaton.allowed_at(size).any(axis=1))
                if len(empty):
                    return f"{name} leaves no token for position {empty[0]}; allow one there."
            if not can_accept(automaton, [self.mask] * size, self.mask, self.end):
                return f"No canvas of {size} tokens can satisfy {name}; {_suggest_length(automaton, size, limit)}."
            if not can_accept(automaton, row, self.mask, self.end):
                return f"The given tokens contradict {name} on a canvas of {size} tokens; change one of them."
        names = " and ".join(dict.fromkeys(map(shorten, self.constraints)))
        return f"{names} contradict each other on this canvas of {size} tokens; drop one or change the length."


def compile_constraints(
    constraints: Sequence[Constraint], vocabulary: Vocabulary, rows: Sequence[Sequence[int]], limit: int = MAX_LENGTH
) -> Automaton:
    """The automaton of all constraints; raises `UnmaskError` if one of the rows cannot satisfy it."""
    compiled = CompiledConstraints(constraints, vocabulary, max(map(len, rows), default=None), limit)
    for row in dict.fromkeys(tuple(row) for row in rows):
        if not compiled.accept(row):
            raise UnmaskError(compiled.reason(row))
    return compiled.automaton


def can_accept(automaton: Automaton, row: Sequence[int], mask: int, end: int = -1) -> bool:
    """Whether the masks of a row can be written so that the automaton accepts it.

    Masks before given text cannot become `end`, the token that ends a text.
    """
    if len(automaton.allowed) > len(row):
        return False
    ids, classes = np.array(row, dtype=np.int64), np.arange(automaton.classes)
    has_text = np.isin(classes, automaton.token_class[np.arange(len(automaton.token_class)) != end])
    writable = ~masks_before_text(row, mask, end)[:, None] | has_text
    possible = np.where((ids == mask)[:, None], writable, automaton.token_class[ids][:, None] == classes)
    reached = np.arange(automaton.states) == 0
    for symbols in automaton.allowed_at(len(row)) & possible:
        reached = automaton.successors(reached, symbols)
    return bool((reached & automaton.accepting).any())


def masks_before_text(row: Sequence[int], mask: int, end: int) -> Bools:
    """[L] the masks of a row that precede a given token other than `end`, and so lie inside the text."""
    ids = np.array(row, dtype=np.int64)
    given = (ids != mask) & (ids != end)
    return (ids == mask) & (given[::-1].cumsum()[::-1] > 0)


def _suggest_length(automaton: Automaton, length: int, limit: int) -> str:
    """Name the length nearest to `length` of canvases that the automaton can accept."""
    longest = min(limit, MAX_LENGTH)
    reached, possible = np.arange(automaton.states) == 0, []
    for size, symbols in enumerate(automaton.allowed_at(longest), start=1):
        reached = automaton.successors(reached, symbols)
        if (reached & automaton.accepting).any() and size >= len(automaton.allowed):
            possible.append(size)
    if possible:
        return f"the nearest possible length is {min(possible, key=lambda one: abs(one - length))}, so ask for that"
    seen = ", the length of this model," if longest == limit else ""
    return f"no length up to {longest} tokens{seen} is possible, so relax the constraint"
