"""Errors that a user can act on: one sentence with what is wrong, the value and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OUT_OF_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Messages of torch's CPU allocator, of CUDA and of cuBLAS, which do not raise `torch.OutOfMemoryError`."""


class UnmaskError(ValueError):
    """Bad input. The command line prints the message and exits with 2."""


class LoneError(UnmaskError):
    """An error of one process that the other processes do not know of. The command line prints it on any rank."""


def first_line(error: BaseException) -> str:
    """The first line of an error message, at most 200 characters; of a Pydantic error, the first field."""
    if callable(details := getattr(error, "errors", None)):
        first = details()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:200]
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory, on a GPU or on the CPU."""
    import torch

    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` or the list of choices, to be appended to a message."""
    known = sorted(choices)
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" Did you mean '{near[0]}'?"
    return f" Choose one of: {', '.join(known)}." if known else ""
