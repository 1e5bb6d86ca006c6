"""Texts with blanks: reading `[MASK]` and `[MASK:n]`, and showing a canvas that still has masks."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from unmask.errors import UnmaskError

BLANK = re.compile(r"\[MASK(?::([^\]]*))?\]")
GLYPH = "░"


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


def decode_canvas(tokenizer: Any, ids: list[int], mask_token_id: int, glyph: str = GLYPH) -> str:
    """The text of token ids; every mask is shown as a block, and the end of a document as a new line."""
    eos = tokenizer.eos_token_id
    pieces = []
    for kind, run in groupby(ids, key=lambda i: glyph if i == mask_token_id else "\n" if i == eos else None):
        tokens = list(run)
        pieces.append(kind * len(tokens) if kind else tokenizer.decode(tokens, clean_up_tokenization_spaces=False))
    return "".join(pieces)


def _width(match: re.Match[str]) -> int:
    if match.group(1) is None:
        return 1
    if not re.fullmatch(r"[1-9][0-9]*", match.group(1)):
        raise UnmaskError(f"The blank '{match.group(0)}' is not [MASK] or [MASK:n] with n at least 1; write it so.")
    return int(match.group(1))
