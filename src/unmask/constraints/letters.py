"""Automata over the letters of a text, and how they read its bytes: UTF-8, letter by letter.

A `Letters` tells the letters that it names apart and takes all others for one. Tokens are bytes, and may end within a
letter; so the states of `Bytes` are a state between letters and what has been read of the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.constraints.automaton import Bools, Ints
from unmask.errors import UnmaskError

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
    """`move` [S, 256] the state after each byte, -1 for none; `accepts` [S]: only between two letters."""

    move: Ints
    accepts: Bools


def counting(low: int, high: int) -> Letters:
    """At least `low` and at most `high` letters."""
    move = np.arange(1, high + 2)[:, None]
    move[high] = -1
    return Letters({}, move, np.arange(high + 1) >= low)


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


def matching(pattern: str) -> Letters:
    """A regular expression that the whole text matches."""
    machine = _parsed(pattern)
    classes = {number: kind for kind, number in enumerate(_classes(machine))}
    states = {state: number for number, state in enumerate(_first(machine.initial, machine.states))}
    move = np.full((len(states), len(classes)), -1)
    for state, row in machine.map.items():
        for symbol, after in row.items():
            if machine.islive(after):
                move[states[state], classes[symbol]] = states[after]
    accepts = np.array([state in machine.finals for state in states])
    named = {letter: classes[number] for letter, number in machine.alphabet.items() if _is_letter(letter)}
    return Letters(named, move, accepts)


def _is_letter(symbol: Any) -> bool:
    """Whether a symbol is a character that a text can have; halves of surrogate pairs are none."""
    return isinstance(symbol, str) and not "\ud800" <= symbol <= "\udfff"


def _parsed(pattern: str) -> Any:
    try:
        import interegular
        from interegular.patterns import InvalidSyntax, Unsupported
    except ImportError:
        raise UnmaskError(
            "Regular expressions need the package interegular; install it with: pip install 'unmask[regex]'."
        ) from None
    try:
        return interegular.parse_pattern(pattern).to_fsm().reduce()
    except (InvalidSyntax, Unsupported) as error:
        reason = " ".join(str(error).split()) or "its syntax"
        raise UnmaskError(
            f"The regular expression {pattern!r} cannot be used ({reason}); write one that describes the whole text, "
            "without anchors, back-references or word boundaries."
        ) from None


def _classes(machine: Any) -> list[int]:
    """The numbers of the classes of letters, that of the letters without a name first."""
    from interegular.fsm import anything_else

    return list(_first(machine.alphabet[anything_else], machine.alphabet.by_transition))


def _first(first: int, members: Iterable[int]) -> dict[int, None]:
    """The members, one of them first."""
    return dict.fromkeys([first, *members])


def read_bytes(letters: Letters) -> Bytes:
    """The automaton that reads the UTF-8 bytes of what `letters` reads; text that is not UTF-8 is not accepted.

    State q P + b has read the whole letters up to state q, and the beginning b of another; beginning 0 is none.
    """
    begun, kind = _spell(letters.kinds)
    size, whole = len(begun), np.maximum(kind, 0)
    after = letters.move[:, whole]
    ended = np.where(after >= 0, after * size, -1)
    going = np.where(begun >= 0, np.arange(len(letters.move))[:, None, None] * size + begun, -1)
    move = np.where(kind >= 0, ended, going).reshape(-1, 256)
    accepts = np.zeros((len(letters.move), size), dtype=bool)
    accepts[:, 0] = letters.accepts
    return Bytes(move, accepts.reshape(-1))


def _spell(kinds: dict[str, int]) -> tuple[Ints, Ints]:
    """[P, 256] the beginning of a letter after each byte, and the kind of the letter that it ends; -1 for none."""
    beginnings = {letter.encode()[:size] for letter in kinds for size in range(1, len(letter.encode()))}
    found: list[Begun] = [(b"", ())]
    rows: list[tuple[list[int], list[int]]] = []
    for place in found:
        row = [-1] * 256, [-1] * 256
        for byte, rest in _next_bytes(place):
            read = place[0] + bytes([byte])
            if not rest:
                row[1][byte] = kinds.get(read.decode(errors="ignore"), ANY)
                continue
            further = (read if read in beginnings else b"", rest)
            if further not in found:
                found.append(further)
            row[0][byte] = found.index(further)
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
