"""The letters of DNA and the strand opposite."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LETTERS = "ACGTN"
"""The four bases and N, any of them; a letter's place is its token id."""

_PARTNERS = "TGCAN"
_COMPLEMENT_OF_LETTER = str.maketrans(LETTERS, _PARTNERS)
_COMPLEMENT_OF_ID = np.array([LETTERS.index(partner) for partner in _PARTNERS])


def reverse_complement(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The opposite strands of token ids, [..., L]: A and T, C and G change places and the order is reversed.

    N and the ids beyond (the mask) stay what they are.
    """
    ids = np.asarray(ids)
    paired = _COMPLEMENT_OF_ID.astype(ids.dtype)[np.minimum(ids, len(LETTERS) - 1)]
    return np.where(ids < len(LETTERS), paired, ids)[..., ::-1]


def reverse_complement_of_text(text: str) -> str:
    """The opposite strand, as letters."""
    return text.translate(_COMPLEMENT_OF_LETTER)[::-1]
