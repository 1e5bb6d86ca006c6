"""Automata over the letters of a text, and how they read its bytes: UTF-8, letter by letter.

A `Letters` tells the letters that it names apart and takes all others for one. Tokens are bytes, and may end within a
letter; so the states of `Bytes` are a state between letters and what has been read of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask.constraints.automaton import Bools, Ints, check_size

ANY = 0
"""The kind of the letters without a name."""
CONTINUES = (0x80, 0xBF)
FIRST_BYTES: list[tuple[range, tuple[tuple[int, int], ...]]] = [
    (range(0xC2, 0xE0), (CONTINUES,)),
    (range(0xE0, 0xE1), ((0xA0, 0xBF), CONTINUES)),
    (range(0xE1, 0xED), (CONTINUES, CONTINUES)),
    (range(0xED, 0xEE), ((0x80, 0x9F), CONTINUES)),
    (range(0xEE, 0xF0), (CONTINUES, CONTINUES)),
    (range(0xF0, 0xF1), ((0x90, 0xBF), CONTINUES, CONTINUES)),
    (range(0xF1, 0xF4), (CONTINUES, CONTINUES, CONTINUES)),
    (range(0xF4, 0xF5), ((0x80, 0x8F), CONTINUES, CONTINUES)),
]
"""The bytes that begin a letter of several, and the ranges of those that follow (Unicode, table 3-7)."""

Begun = tuple[bytes, tuple[tuple[int, int], ...]]
"""What was read of a letter, empty where no named letter begins so, and the ranges of the bytes that it needs yet."""


@dataclass(frozen=True)
class Letters:
    """`kinds` of named letters (others are of kind 0), `move` [Q, C] from state 0, -1 for none, `accepts` [Q]."""

    kinds: dict[str, int]
    move: Ints
    accepts: Bools


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


def read_bytes(letters: Letters) -> Bytes:
    """The automaton that reads the UTF-8 bytes of what `letters` reads; text that is not UTF-8 is not accepted.

    State q P + b has read the whole letters up to state q, and the beginning b of another; beginning 0 is none.
    """
    letters = _merge_kinds(letters)
    (begun, kind), alike = _merge_bytes(*_spell(letters.kinds))
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
    named = {letter: int(order[place[kind]]) for letter, kind in letters.kinds.items()}
    return Letters({letter: kind for letter, kind in named.items() if kind != ANY}, move[:, order], letters.accepts)


def _merge_bytes(begun: Ints, kind: Ints) -> tuple[tuple[Ints, Ints], bytes]:
    """Tables [P, C] of kinds of bytes out of those [P, 256] of bytes, and the kind of every byte."""
    table, alike = np.unique(np.concatenate([begun, kind]), axis=1, return_inverse=True)
    return (table[: len(begun)], table[len(begun) :]), alike.reshape(-1).astype(np.uint8).tobytes()


def _spell(kinds: dict[str, int]) -> tuple[Ints, Ints]:
    """[P, 256] the beginning of a letter after each byte, and the kind of the letter that it ends; -1 for none."""
    beginnings = {letter.encode()[:size] for letter in kinds for size in range(1, len(letter.encode()))}
    found: dict[Begun, int] = {(b"", ()): 0}
    waiting = list(found)
    rows: list[tuple[list[int], list[int]]] = []
    for place in waiting:
        row = [-1] * 256, [-1] * 256
        for byte, rest in _next_bytes(place):
            read = place[0] + bytes([byte])
            if not rest:
                row[1][byte] = kinds.get(read.decode(errors="ignore"), ANY)
                continue
            further = (read if read in beginnings else b"", rest)
            if further not in found:
                found[further] = len(found)
                waiting.append(further)
            row[0][byte] = found[further]
        rows.append(row)
    begun, ended = zip(*rows, strict=True)
    return np.array(begun), np.array(ended)


def _next_bytes(place: Begun) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """The bytes that may come, each with the ranges of those that must come after it."""
    _, needed = place
    if needed:
        low, high = needed[0]
        return [(byte, needed[1:]) for byte in range(low, high + 1)]
    return [(byte, ()) for byte in range(0x80)] + [(byte, rest) for bytes_, rest in FIRST_BYTES for byte in bytes_]
