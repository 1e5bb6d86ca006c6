"""From letters to tokens: every token is read, byte by byte, from every state that tokens lead to."""

from __future__ import annotations

from functools import partial

import numpy as np

from unmask.constraints.automaton import Automaton, Bools, Ints, explore, tidy
from unmask.constraints.letters import Letters, read_bytes
from unmask.constraints.vocabulary import Pieces, Vocabulary

NOTHING, END, NEVER = 256, 257, 258
"""Symbols beside the bytes: one that is passed over, the end of the text, and one that is never accepted."""


def lift(letters: Letters, vocabulary: Vocabulary) -> Automaton:
    """The automaton over tokens that accepts the canvases whose text `letters` accepts.

    Bytes that no state tells apart are one, so that most tokens read like many others and few are read at all. Where
    tokens read differently at the beginning of a text, states from the size of the table on are those at a beginning.
    """
    table, accepts = _with_symbols(letters)
    first, later = (_spelled(pieces, vocabulary) for pieces in vocabulary.pieces)
    begins = vocabulary.pieces[0] != vocabulary.pieces[1]
    renews = np.zeros((vocabulary.size, 1), dtype=np.int64)
    renews[[] if vocabulary.eos is None or not begins else vocabulary.eos] = 1
    alike = _representatives(table)
    words, kind = np.unique(np.concatenate([alike[first], alike[later], renews], axis=1), axis=0, return_inverse=True)
    first, later, renews = np.split(words, [first.shape[1], -1], axis=1)
    moves = partial(_moves, table, first.T, later.T, renews[:, 0])
    found, move = explore(moves, len(table) if begins else 0)
    return tidy(Automaton(kind.reshape(-1), move, accepts[found % len(table)], np.ones((0, len(words)), dtype=bool)))


def _with_symbols(letters: Letters) -> tuple[Ints, Bools]:
    """The moves [S + 2, 259] by bytes and symbols, and what is accepted; last the states `ended` and `dead`."""
    reader = read_bytes(letters)
    ended = len(reader.move)
    table = np.full((ended + 2, 259), -1)
    table[:ended, :256] = reader.move
    table[:ended, NOTHING] = np.arange(ended)
    table[:ended, END] = np.where(reader.accepts, ended, -1)
    table[ended, :NEVER] = ended
    return table, np.concatenate([reader.accepts, [True, False]])


def _spelled(pieces: Pieces, vocabulary: Vocabulary) -> Ints:
    """[V, W] the symbols of every token."""
    spelled = np.full((len(pieces), max(1, *(len(piece or b"") for piece in pieces))), NOTHING)
    for token, piece in enumerate(pieces):
        if piece is None:
            spelled[token, 0] = NEVER
        else:
            spelled[token, : len(piece)] = list(piece)
    if vocabulary.eos is not None and vocabulary.ends_with_eos:
        spelled[vocabulary.eos] = NOTHING
        spelled[vocabulary.eos, 0] = END
    return spelled


def _representatives(table: Ints) -> Ints:
    """[259] one symbol for all that move alike."""
    group = np.unique(table, axis=1, return_inverse=True)[1].reshape(-1)
    member = np.zeros(group.max() + 1, dtype=np.int64)
    member[group] = np.arange(len(group))
    return member[group]


def _moves(table: Ints, first: Ints, later: Ints, renews: Ints, states: Ints) -> Ints:
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
