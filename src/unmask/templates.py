"""Texts with blanks: reading `[MASK]` and `[MASK:n]`, and showing a canvas with masks, whole or token by token."""

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


def parse_blanks(text: str) -> list[str | int]:
    """The known pieces of a text and, between them, the number of tokens of each blank."""
    parts: list[str | int] = []
    end = 0
    for match in BLANK.finditer(text):
        if match.start() > end:
            parts.append(text[end : match.start()])
        parts.append(_width(match))
        end = match.end()
    if end < len(text):
        parts.append(text[end:])
    return parts


def without_spaces_before_blanks(parts: list[str | int]) -> list[str | int]:
    """The pieces of a text, of which one space before a blank is left to the blank."""
    following = [*parts[1:], ""]
    return [
        part[:-1] if isinstance(part, str) and isinstance(after, int) and part.endswith(" ") else part
        for part, after in zip(parts, following, strict=True)
    ]


def decode_canvas(tokenizer: Any, ids: list[int], mask_token_id: int, glyph: str = GLYPH) -> str:
    """The text of token ids; every mask is shown as a block, and the end of a document as a new line."""
    eos = tokenizer.eos_token_id
    pieces = []
    for kind, run in groupby(ids, key=lambda i: glyph if i == mask_token_id else "\n" if i == eos else None):
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


def _width(match: re.Match[str]) -> int:
    if match.group(1) is None:
        return 1
    if not re.fullmatch(r"[1-9][0-9]*", match.group(1)):
        raise UnmaskError(f"The blank '{match.group(0)}' is not [MASK] or [MASK:n] with n at least 1; write it so.")
    return int(match.group(1))
