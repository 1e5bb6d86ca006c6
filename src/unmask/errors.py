"""The error a user can act on: one sentence that names the input, the reason and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What torch says where it does not raise an error of its own: its CPU allocator, CUDA itself, a library of it."""


class UnmaskError(ValueError):
    """Bad input. The message is one sentence for the user; the command line prints it and exits with 2."""


class LoneError(UnmaskError):
    """What one of several processes cannot tell the others. The command line prints it, whichever process it is."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch did not get the memory it asked for, of a GPU or of the machine."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` or the list of choices, ready to stand at the end of a message."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Choose one of: {', '.join(known)}." if known else ""
