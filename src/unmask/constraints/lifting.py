"""From letters to tokens: every token is read, byte by byte, from every state that tokens lead to."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from unmask.constraints.automaton import Automaton, Bools, Ints, explore, tidy
from unmask.constraints.letters import Bytes, Letters, read_bytes
from unmask.constraints.vocabulary import Vocabulary

NOTHING, END, NEVER = -3, -2, -1
"""The last columns of a table: a symbol that is passed over, the end of the text, and what is never accepted."""


class Word(NamedTuple):
    """What a token reads as at the beginning of a text and elsewhere; whether a text begins anew behind it."""

    first: bytes | int
    later: bytes | int
    renews: bool = False


def lift(letters: Letters, vocabulary: Vocabulary) -> Automaton:
    """The automaton over tokens that accepts the canvases whose text `letters` accepts.

    Bytes that no state tells apart are one, so that most tokens read like many others and few are read at all. Where
    tokens read differently at the beginning of a text, states from the size of the table on are those at a beginning.
    """
    reader = read_bytes(letters)
    table, accepts = _with_symbols(reader)
    kind, words = _distinct(vocabulary, reader.alike)
    first, later = _spelled([word.first for word in words]), _spelled([word.later for word in words])
    renews = np.array([word.renews for word in words])
    found, move = explore(partial(_moves, table, first, later, renews), len(table) if vocabulary.begins else 0)
    return tidy(Automaton(kind, move, accepts[found % len(table)], np.ones((0, len(words)), dtype=bool)))


def _with_symbols(reader: Bytes) -> tuple[Ints, Bools]:
    """The moves [S + 2, C + 3] by kinds of bytes and symbols, and what is accepted; last the states `ended`, `dead`."""
    ended, kinds = reader.move.shape
    table = np.full((ended + 2, kinds + 3), -1)
    table[:ended, :kinds] = reader.move
    table[:ended, NOTHING] = np.arange(ended)
    table[:ended, END] = np.where(reader.accepts, ended, -1)
    table[ended, :NEVER] = ended
    return table, np.concatenate([reader.accepts, [True, False]])


def _distinct(vocabulary: Vocabulary, alike: bytes) -> tuple[Ints, list[Word]]:
    """The kind [V] of every token, and what each kind reads as."""
    words: dict[Word, int] = {}
    kind = np.empty(vocabulary.size, dtype=np.int64)
    for token, (first, later) in enumerate(zip(*vocabulary.pieces, strict=True)):
        if first is None or later is None:
            word = Word(NEVER, NEVER)
        elif token == vocabulary.eos and vocabulary.ends_with_eos:
            word = Word(END, END)
        else:
            renews = vocabulary.begins and token == vocabulary.eos
            word = Word(first.translate(alike), later.translate(alike), renews)
        kind[token] = words.setdefault(word, len(words))
    return kind, list(words)


def _spelled(texts: list[bytes | int]) -> Ints:
    """[W, K] the symbols of texts, each followed by nothing."""
    symbols = [[text] if isinstance(text, int) else list(text) for text in texts]
    spelled = np.full((max(map(len, symbols)), len(symbols)), NOTHING)
    for column, one in enumerate(symbols):
        spelled[: len(one), column] = one
    return spelled


def _moves(table: Ints, first: Ints, later: Ints, renews: Bools, states: Ints) -> Ints:
    """[N, K] the states after words whose letters are `first` [W, K] at a beginning and `later` [W, K] elsewhere."""
    begin, state = np.divmod(states, len(table))
    after = np.empty((len(states), len(renews)), dtype=np.int64)
    for is_begin, words in ((1, first), (0, later)):
        after[begin == is_begin] = _read(table, state[begin == is_begin], words)
    return np.where(after >= 0, after + len(table) * renews, -1)


def _read(table: Ints, states: Ints, words: Ints) -> Ints:
    after = np.repeat(states[:, None], words.shape[1], axis=1)
    for symbols in words:
        (more,) = np.nonzero(symbols != NOTHING)
        after[:, more] = table[after[:, more], symbols[more]]
    return after
