"""Tables of rows, computed when they are read, and the shuffled order in which training reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np
import numpy.typing as npt

from unmask.errors import UnmaskError

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

FEISTEL_ROUNDS = 8
ROWS_AT_ONCE = 256


def permute(seed: int, epoch: int | npt.ArrayLike, n: int, indices: npt.ArrayLike) -> Integers:
    """Apply a random permutation of range(n) to `indices`, without storing it.

    seed, epoch: choose the permutation; `epoch` is one number or one per index. indices: integers in [0, n), of any
    shape. Returns int64 of that shape. The permutation is a Feistel network, repeated until its value is below n.
    """
    where = np.asarray(indices, dtype=np.int64)
    if where.size and (where.min() < 0 or where.max() >= n):
        raise IndexError(f"indices must be in [0, {n})")
    epochs = np.broadcast_to(np.asarray(epoch, dtype=np.int64), where.shape).astype(np.uint64).ravel()
    keys = _mix(_mix(np.full(epochs.shape, seed & (1 << 64) - 1, dtype=np.uint64)) ^ epochs)
    left_size = isqrt(max(n - 1, 0)) + 1
    sizes = np.uint64(left_size), np.uint64(-(-n // left_size) or 1)
    values = _feistel(where.ravel().astype(np.uint64), keys, *sizes)
    while (outside := values >= n).any():
        values[outside] = _feistel(values[outside], keys[outside], *sizes)
    return values.astype(np.int64).reshape(where.shape)


def _feistel(values: Words, keys: Words, left_size: np.uint64, right_size: np.uint64) -> Words:
    left, right = np.divmod(values, right_size)
    for number in range(0, FEISTEL_ROUNDS, 2):
        left = (left + _mix(keys ^ _mix(right + np.uint64(number << 40))) % left_size) % left_size
        right = (right + _mix(keys ^ _mix(left + np.uint64((number + 1) << 40))) % right_size) % right_size
    return left * right_size + right


def _mix(words: Words) -> Words:
    """SplitMix64: a bijection of 64-bit words that looks random."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Some rows of a table.

    input_ids: int64 [B, L]. attention_mask: bool [B, L], True at positions that are attended and counted. document:
    int64 [B, L], the index of each position's document, -1 for padding. frozen: bool [B, L], True at given tokens,
    which are not counted.
    """

    input_ids: Integers
    attention_mask: Flags
    document: Integers
    frozen: Flags


class Rows(ABC):
    """A table of rows; ``rows[indices]`` reads some of them.

    length: L, the tokens of a row. counted: attended positions, EOS and supervised padding included. split_documents,
    truncated_documents: the numbers of documents that are longer than a row.
    """

    length: int
    counted: int
    split_documents = 0
    truncated_documents = 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def _read(self, rows_B: Integers) -> RowBatch:
        """Read the rows with these numbers."""

    @property
    @abstractmethod
    def documents(self) -> int:
        """The number of documents that `RowBatch.document` refers to."""

    @property
    def byte_counts(self) -> Integers | None:
        """[documents] UTF-8 bytes of each text; None if the text in the rows is not known."""
        return None

    @property
    def character_counts(self) -> Integers | None:
        """[documents] characters of each text; None if the text in the rows is not known."""
        return None

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of the text in the rows; None if it is not known."""
        return None if self.byte_counts is None else int(self.byte_counts.sum())

    @property
    def characters(self) -> int | None:
        """Characters of the text in the rows; None if it is not known."""
        return None if self.character_counts is None else int(self.character_counts.sum())

    @property
    def document_bytes(self) -> Integers:
        """[documents] UTF-8 bytes of each text; 0 if the text in the rows is not known."""
        return np.zeros(self.documents, dtype=np.int64) if self.byte_counts is None else self.byte_counts

    @property
    def document_characters(self) -> Integers:
        """[documents] characters of each text; 0 if the text in the rows is not known."""
        return np.zeros(self.documents, dtype=np.int64) if self.character_counts is None else self.character_counts

    def spread(self, count: int) -> Rows:
        """Return at most `count` rows, spread evenly over the table."""
        return self if len(self) <= count else SpreadRows(self, count)

    def sample(self, seed: int, global_indices: npt.ArrayLike) -> Integers:
        """Return the row that each sample of a training run reads, a function of seed and index alone.

        Sample g is position g mod n of epoch g // n; each epoch has all n rows in another order.
        """
        indices = np.asarray(global_indices, dtype=np.int64)
        return permute(seed, indices // len(self), len(self), indices % len(self))

    def __getitem__(self, indices: int | slice | npt.ArrayLike) -> RowBatch:
        """Read one row, a slice of rows, or a list of them."""
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(len(self)))
        rows_B = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        if rows_B.size and (rows_B.min() < 0 or rows_B.max() >= len(self)):
            raise IndexError(f"rows must be in [0, {len(self)})")
        return self._read(rows_B)

    def check_trainable(self) -> None:
        """Raise `UnmaskError` if there is too little text to train on."""
        if not len(self):
            raise UnmaskError("The training text has no tokens; give more text.")


class SpreadRows(Rows):
    """Some rows of a table, spread evenly. Documents are renumbered; their bytes and characters are not known."""

    def __init__(self, table: Rows, count: int) -> None:
        self.length = table.length
        self.counted = 0
        self._table = table
        self._chosen = np.arange(count) * len(table) // count
        self._documents = np.zeros(0, dtype=np.int64)
        for start in range(0, count, ROWS_AT_ONCE):
            rows = table[self._chosen[start : start + ROWS_AT_ONCE]]
            self.counted += int(rows.attention_mask.sum())
            self._documents = np.union1d(self._documents, rows.document[rows.document >= 0])

    def __len__(self) -> int:
        return len(self._chosen)

    @property
    def documents(self) -> int:
        """The number of documents with a part in the chosen rows."""
        return len(self._documents)

    def _read(self, rows_B: Integers) -> RowBatch:
        rows = self._table[self._chosen[rows_B]]
        number_BL = np.searchsorted(self._documents, rows.document)
        return replace(rows, document=np.where(rows.document < 0, -1, number_BL))
