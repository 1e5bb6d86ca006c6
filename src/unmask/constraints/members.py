"""The constraints that a user can ask for: each says what it wants and makes the automaton of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from unmask.constraints.automaton import Automaton, Bools, check_size, fewest_states, intersect, one_state, shown, tidy
from unmask.constraints.letters import counting
from unmask.constraints.lifting import lift
from unmask.constraints.patterns import matching
from unmask.constraints.vocabulary import Vocabulary
from unmask.constraints.words import containing, search_moves, standing_alone
from unmask.errors import UnmaskError

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


def constraints_of(asked: Constraint | Sequence[Constraint]) -> list[Constraint]:
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
