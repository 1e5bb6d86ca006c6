"""The error a user can act on: one sentence that names the input, the reason and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnmaskError(ValueError):
    """Bad input. The message is one sentence for the user; the command line prints it and exits with 2."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` or the list of choices, ready to stand at the end of a message."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Choose one of: {', '.join(known)}." if known else ""
