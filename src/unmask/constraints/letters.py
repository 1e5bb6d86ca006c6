"""Automata over the letters of a text, and how they read its bytes: UTF-8, letter by letter.

A `Letters` tells the letters that it names apart and takes all others for one. Tokens are bytes, and may end within a
letter; so the states of `Bytes` are a state between letters and what has been read of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask.constraints.alphabet import UNICODE, of_words
from unmask.constraints.automaton import Bools, Ints, check_size

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
    letters = _merge_kinds(letters)
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


def _merge_kinds(letters: Letters) -> Letters:
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
