"""Texts to enumerate, and what an automaton accepts."""

from __future__ import annotations

import itertools

from unmask.constraints import Automaton
from unmask.constraints.members import can_accept


def accepts(automaton: Automaton, ids: list[int] | bytes) -> bool:
    return can_accept(automaton, list(ids), -1)


def texts(longest: int, alphabet: str = "aé☃") -> list[str]:
    """All texts of up to so many characters of 1, 2 and 3 bytes."""
    sizes = range(longest + 1)
    return ["".join(letters) for size in sizes for letters in itertools.product(alphabet, repeat=size)]


def has_whole_word(word: str, text: str) -> bool:
    """Whether a word occurs without a letter or digit next to its own first and last ones."""
    starts = [i for i in range(len(text)) if text.startswith(word, i)]
    sides = [(text[:i][-1:], text[i + len(word) :][:1]) for i in starts]
    return any(
        not (word[0].isalnum() and before.isalnum()) and not (word[-1].isalnum() and after.isalnum())
        for before, after in sides
    )
