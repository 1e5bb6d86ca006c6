"""Rows of items, each a question and its answer: what the question tells is frozen, the rest of the answer counts."""

from __future__ import annotations

import numpy as np

from unmask.data.cache import Tokens
from unmask.data.rows import Integers, RowBatch
from unmask.data.token_rows import BLOCK, DocumentRows, TokenRows
from unmask.errors import UnmaskError


class ItemRows(TokenRows):
    """What the tables of items have in common: their texts are more than what counts, so bytes are not known."""

    @property
    def bytes(self) -> int | None:
        """Not known of the part that counts."""
        return None

    @property
    def characters(self) -> int | None:
        """Not known of the part that counts."""
        return None

    def _sizes_of(self, counts: Integers | None) -> Integers:
        return np.zeros(self.documents, dtype=np.int64)


class OverlaidRows(ItemRows):
    """Questions laid over answers of as many tokens: where the two agree the token is given.

    A document is a question, one token between, and an answer. asks: whether the row is all of that; without it, it is
    the answer alone, in which nothing but the given tokens is left of the question.
    """

    def __init__(self, tokens: Tokens, length: int, asks: bool) -> None:
        super().__init__(tokens, length, None, None)
        self._asks = asks
        self._size = length if asks else 2 * length + 1
        self._cells = self._size // 2
        self._check_sizes()
        self.counted = len(self) * length

    def __len__(self) -> int:
        return len(self.tokens)

    def _check_sizes(self) -> None:
        (wrong,) = (np.diff(self._offsets) != self._size).nonzero()
        if self._size % 2 and not wrong.size:
            return
        number = int(wrong[0]) if wrong.size else 0
        found = len(self.tokens.document(number))
        raise UnmaskError(
            f"The policy 'overlaid' needs a question and an answer of equally many tokens with one between, and a "
            f"data.length of {'all of it' if self._asks else 'the answer'}; {self.tokens.name(number)} has {found} "
            f"tokens and data.length is {self.length}."
        )

    def _read(self, rows_B: Integers) -> RowBatch:
        start_B1 = rows_B[:, None] * self._size
        question_BN = self._at(start_B1 + np.arange(self._cells))
        ids_BL = answer_BN = self._at(start_B1 + self._cells + 1 + np.arange(self._cells))
        frozen_BL = question_BN == answer_BN
        if self._asks:
            ids_BL = self._at(start_B1 + np.arange(self._size))
            told = np.ones((len(rows_B), self._cells + 1), dtype=np.bool_)
            frozen_BL = np.concatenate([told, frozen_BL], axis=1)
        document_BL = np.repeat(rows_B[:, None], self.length, axis=1)
        return RowBatch(ids_BL, np.ones_like(frozen_BL), document_BL, frozen_BL)

    def _at(self, place: Integers) -> Integers:
        return self._gather(place, np.zeros_like(place, dtype=np.bool_))


class PromptedRows(ItemRows, DocumentRows):
    """One document a row, of which everything up to its first separator token is given."""

    def __init__(
        self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None, separator: int, text: str
    ) -> None:
        super().__init__(tokens, length, eos_id, pad_id, "error")
        self._separator = separator
        self._check_separators(text)

    def _check_separators(self, text: str) -> None:
        for start in range(0, len(self.tokens), BLOCK):
            offsets = self._offsets[start : start + BLOCK + 1]
            found = (
                np.flatnonzero(np.asarray(self.tokens.ids[offsets[0] : offsets[-1]]) == self._separator) + offsets[0]
            )
            counts = np.diff(np.searchsorted(found, offsets))
            if not counts.all():
                name = self.tokens.name(start + int(counts.argmin()))
                raise UnmaskError(
                    f"The policy 'prompted' looks for {text!r} between a question and its answer, and {name} has none; "
                    "name what stands there in data.policy.separator."
                )

    def _read(self, rows_B: Integers) -> RowBatch:
        rows = super()._read(rows_B)
        is_separator = rows.input_ids == self._separator
        frozen_BL = is_separator.cumsum(axis=1) - is_separator == 0
        return RowBatch(rows.input_ids, rows.attention_mask, rows.document, frozen_BL)
