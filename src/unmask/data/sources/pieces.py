"""Long texts, cut: nobody ever holds more of a text than two pieces and what was just read.

Where a text is cut depends on the text alone, not on how it came in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from unmask.data.sources.base import Document

PIECE = 1 << 24
"""Characters from which on a text is cut: at the next end of a word, or after twice as many where no word ends."""

Text = str | Iterator[str]
"""A text, or its consecutive parts where it may be too long to be held."""

WORD_END = re.compile(r"(?<=\S)(?=[ \n])")


def in_pieces(name: str, text: Text) -> Iterator[Document]:
    """One text as documents of one name: a single one, several where it is long, none where it is empty."""
    held = ""
    for piece in _pieces([text] if isinstance(text, str) else text):
        if held:
            yield Document(name, held, more=True)
        held = piece
    if held:
        yield Document(name, held)


def numbered(name: str, texts: Iterable[Text]) -> Iterator[Document]:
    """Texts named ``name#0``, ``name#1``, ...; those without any character are dropped and not counted."""
    number = 0
    for text in texts:
        label = f"{name}#{number}"
        if isinstance(text, str) and 0 < len(text) <= PIECE:
            yield Document(label, text)
            number += 1
        else:
            cut = in_pieces(label, text)
            first = next(cut, None)
            if first is not None:
                yield first
                yield from cut
                number += 1


def _pieces(parts: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size > 2 * PIECE:
            *whole, rest = _cut("".join(held))
            yield from whole
            held, size = [rest], len(rest)
    yield from _cut("".join(held))


def _cut(text: str) -> Iterator[str]:
    """The pieces of a text. If it goes on, all but the last are final."""
    start = 0
    while len(text) - start > PIECE:
        end = _word_end(text, start + PIECE, start + 2 * PIECE)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _word_end(text: str, first: int, last: int) -> int:
    """The first place from ``first`` on with a space or line end behind it and none before; ``last`` without one."""
    spaces = [at for space in " \n" if (at := text.find(space, first, last)) >= 0]  # much faster than the pattern
    found = WORD_END.search(text, min(spaces), last) if spaces else None
    return found.start() if found else last
