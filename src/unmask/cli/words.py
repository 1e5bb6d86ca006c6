"""Which of the words behind a verb is a checkpoint and which are texts: `unmask fill [CKPT] TEXT...`."""

from __future__ import annotations

import sys

from unmask import shelf
from unmask.errors import UnmaskError

BLANK = "[MASK"
STDIN = "-"


def split_blanks(words: list[str]) -> tuple[str | None, list[str]]:
    """For texts with blanks: a first word without one is the checkpoint; without it, the shipped model is meant."""
    first, *others = words
    if BLANK in first or first == STDIN:
        return None, _read(words, "fill; give lines with [MASK] or [MASK:n] blanks")
    if others:
        return first, _read(others, "fill; give lines with [MASK] or [MASK:n] blanks")
    if shelf.is_named(first):
        raise UnmaskError(f"'{first}' is a checkpoint and there is no text behind it; add one with a [MASK] blank.")
    raise UnmaskError(f"The text {first!r} has no blank; mark one with [MASK] or [MASK:n].")


def split_texts(words: list[str], verb: str = "score") -> tuple[str | None, list[str]]:
    """For any texts: of several words the first is the checkpoint; a single one is a text for the shipped model."""
    first, *others = words
    if others:
        return first, _read(others, f"{verb}; give one text a line")
    if shelf.is_named(first):
        raise UnmaskError(f"'{first}' is a checkpoint and there is no text behind it; add one.")
    return None, _read(words, f"{verb}; give one text a line")


def _read(texts: list[str], purpose: str) -> list[str]:
    """The texts themselves, or, for a single '-', the lines of standard input."""
    lines = _lines_of_stdin() if texts == [STDIN] else texts
    if not lines:
        raise UnmaskError(f"Standard input held no text to {purpose}.")
    return lines


def _lines_of_stdin() -> list[str]:
    """Its lines that are not empty. By the locale, bytes that are no text are an error or half surrogate pairs."""
    try:
        lines = [line.rstrip("\r\n") for line in sys.stdin or () if line.strip()]
        "".join(lines).encode()
    except UnicodeError as error:
        raise UnmaskError("Standard input is not valid UTF-8; convert it first.") from error
    return lines
