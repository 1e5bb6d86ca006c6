"""Where each token of a finished text stands on a page of fixed width, so that it keeps its place while masked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

RETURN, TAB, ODD = "⏎", "⇥", "·"
_SHORT = {"\n": RETURN, "\r": RETURN, "\t": TAB}


class Chip(NamedTuple):
    """The visible part of a token on one line; a token that is broken over two lines has two."""

    line: int
    column: int
    token: int
    text: str


class _Letter(NamedTuple):
    token: int
    character: str
    solid: bool


def lay_out(pieces: Sequence[str], width: int) -> list[Chip]:
    """Set the tokens line by line, broken between words; a new line in the text is shown and obeyed."""
    placed = list(_placed(pieces, width))
    chips = []
    for (line, _, solid), run in groupby(placed, key=lambda cell: (cell[0], cell[2].token, cell[2].solid)):
        if solid:
            cells = list(run)
            chips.append(Chip(line, cells[0][1], cells[0][2].token, "".join(cell[2].character for cell in cells)))
    return chips


def _placed(pieces: Sequence[str], width: int) -> Iterator[tuple[int, int, _Letter]]:
    """Line, column and letter. A blank at the end of a line hangs over the margin."""
    line = column = 0
    for word in _words(pieces):
        size = sum(letter.character != " " for letter in word)
        if column and column + size > width >= size:
            line, column = line + 1, 0
        for letter in word:
            if column >= width and letter.character not in (" ", RETURN):
                line, column = line + 1, 0
            yield line, column, letter
            column += 1
            if letter.character == RETURN:
                line, column = line + 1, 0


def _words(pieces: Sequence[str]) -> Iterator[list[_Letter]]:
    """Letters up to and including a blank or the end of a line."""
    word: list[_Letter] = []
    for token, piece in enumerate(pieces):
        for character in piece:
            shown = _SHORT.get(character, character if character.isprintable() else ODD)
            word.append(_Letter(token, shown, shown != " " or not piece.strip(" ")))
            if shown in (" ", RETURN):
                yield word
                word = []
    yield word
