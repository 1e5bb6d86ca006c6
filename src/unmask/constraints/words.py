"""The search for words in a text, as parts of it or standing alone; a run of tokens is searched for in the same way."""

from __future__ import annotations

import numpy as np

from unmask.constraints.alphabet import is_of_word
from unmask.constraints.automaton import Ints
from unmask.constraints.letters import Letters

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
