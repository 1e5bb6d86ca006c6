"""Which letters are parts of words. NumPy and Unicode's own tables; nobody is imported but the types."""

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np

from unmask.constraints.automaton import Bools

UNICODE = 0x110000
BLOCKS = ((0x100, 0x800, 0x40), (0x800, 0x40000, 0x1000))
"""Where characters are taken by blocks of a size, which begin with the same bytes; behind the last are no letters."""


@cache
def of_words() -> Bools:
    """[0x110000] whether a character is a letter or a digit.

    Below U+0100 each is looked at alone. Beyond, a block is what most of it is: one by one they would need hundreds of
    states more, for the bytes of a letter that has begun, and as many times more as there are words.
    """
    found = np.zeros(UNICODE, dtype=bool)
    found[:0x100] = [chr(code).isalnum() for code in range(0x100)]
    for begin, end, size in BLOCKS:
        code = np.arange(begin, end)
        votes = np.bincount(code // size, weights=[_vote(chr(one)) for one in code])
        found[begin:end] = votes[code // size] > 0
    return found


def is_of_word(letter: str) -> bool:
    """Whether a character is a letter or a digit, as words see it."""
    return bool(of_words()[ord(letter)])


def _vote(letter: str) -> int:
    """1 for letters and digits, -1 for other signs, 0 for marks upon letters and for what is nothing."""
    return 1 if letter.isalnum() else -1 if unicodedata.category(letter)[0] in "PSZ" else 0
