"""Texts with blanks: reading `[MASK]`, `[MASK:n]` and `[MASK:n-m]`, and canvases shown whole or by token."""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from typing import Any

from unmask.errors import UnmaskError

BLANK = re.compile(r"\[MASK(?::([^\]]*))?\]")
GLYPH = "░"
UNFINISHED = "�"
LONGEST_LETTER = 4
"""Bytes of one letter in UTF-8, at most."""
MOST_LENGTHS = 64
"""Lengths that one blank may choose among."""

Part = str | int | range
"""A known piece of a text, or a blank: its number of tokens, or the numbers that it may have."""


def parse_blanks(text: str) -> list[Part]:
    """The known pieces of a text and, between them, the number of tokens of each blank, or those it may have."""
    parts: list[Part] = []
    end = 0
    for match in BLANK.finditer(text):
        if match.start() > end:
            parts.append(text[end : match.start()])
        parts.append(_width(match))
        end = match.end()
    if end < len(text):
        parts.append(text[end:])
    return parts


def without_spaces_before_blanks(parts: list[Part]) -> list[Part]:
    """The pieces of a text, of which one space before a blank is left to the blank."""
    following = [*parts, ""][1:]
    return [
        part[:-1] if isinstance(part, str) and not isinstance(after, str) and part.endswith(" ") else part
        for part, after in zip(parts, following, strict=True)
    ]


def decode_canvas(tokenizer: Any, ids: list[int], mask_token_id: int) -> str:
    """The text of token ids; every mask is shown as a block, and the end of a document as a new line."""
    eos = tokenizer.eos_token_id
    pieces = []
    for kind, run in groupby(ids, key=lambda i: GLYPH if i == mask_token_id else "\n" if i == eos else None):
        tokens = list(run)
        pieces.append(kind * len(tokens) if kind else tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
    return "".join(pieces)


class PieceReader:
    """Tells what each position of a canvas adds to its text; remembers what tokens decode to."""

    def __init__(self, tokenizer: Any, mask_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._mask = mask_token_id
        self._known: dict[tuple[int, ...], str] = {}

    def read(self, ids: list[int]) -> list[str | None]:
        """A piece of text for every token, None for a mask; joined they are the text of `decode_canvas`.

        A letter made of several tokens belongs to the last of them.
        """
        eos = self._tokenizer.eos_token_id
        pieces: list[str | None] = []
        for kind, run in groupby(ids, key=lambda i: "mask" if i == self._mask else "end" if i == eos else "text"):
            tokens = list(run)
            fixed = {"mask": None, "end": "\n"}
            pieces += [fixed[kind]] * len(tokens) if kind in fixed else self._split(tokens)
        return pieces

    def _split(self, tokens: list[int]) -> list[str]:
        pieces, start = [], 0
        for end in range(1, len(tokens) + 1):
            piece = self._decode(tokens[start:end])
            unfinished = piece.endswith(UNFINISHED) and end - start < LONGEST_LETTER and end < len(tokens)
            pieces.append("" if unfinished else piece)
            start = start if unfinished else end
        whole = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return pieces if "".join(pieces) == whole else self._split_by_growth(tokens, whole)

    def _split_by_growth(self, tokens: list[int], whole: str) -> list[str]:
        """Slower, for tokenizers whose tokens read differently alone than among others."""
        ends = [0]
        for size in range(1, len(tokens)):
            grown = self._tokenizer.decode(tokens[:size], clean_up_tokenization_spaces=False).rstrip(UNFINISHED)
            ends.append(max(ends[-1], len(grown)))
        return [whole[a:b] for a, b in pairwise([*ends, len(whole)])]

    def _decode(self, tokens: list[int]) -> str:
        key = tuple(tokens)
        if key not in self._known:
            self._known[key] = self._tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return self._known[key]


def _width(match: re.Match[str]) -> int | range:
    numbers = re.fullmatch(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?", "1" if match.group(1) is None else match.group(1))
    if numbers is None:
        raise UnmaskError(
            f"The blank '{match.group(0)}' is not [MASK], [MASK:n] or [MASK:n-m] with n at least 1; write it so."
        )
    low, high = int(numbers[1]), int(numbers[2] or numbers[1])
    if high < low:
        raise UnmaskError(f"The blank '{match.group(0)}' ends before it begins; write it as [MASK:{high}-{low}].")
    if high - low >= MOST_LENGTHS:
        raise UnmaskError(
            f"The blank '{match.group(0)}' has {high - low + 1} lengths to choose among and may have {MOST_LENGTHS}; "
            "narrow its range."
        )
    return low if low == high else range(low, high + 1)
