"""Tables of rows, computed when they are read: what every table is, and some rows of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np
import numpy.typing as npt

from unmask.errors import UnmaskError

Integers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

ROUNDS = 8
_WORD = (1 << 64) - 1


def order(seed: int, epoch: int | npt.ArrayLike, n: int, indices: npt.ArrayLike) -> Integers:
    """Where positions ``indices`` of a pass fall in the shuffled range(n).

    seed, epoch: choose the permutation; ``epoch`` is one number or one for each index. indices: integers in [0, n), of
    any shape. Returns int64 of that shape; all n indices of one epoch give all n values.
    """
    where = np.asarray(indices, dtype=np.int64)
    if where.size and (where.min() < 0 or where.max() >= n):
        raise IndexError(f"positions must lie in [0, {n})")
    epochs = np.broadcast_to(np.asarray(epoch, dtype=np.int64), where.shape).astype(np.uint64).ravel()
    keys = _mix(_mix(np.full(epochs.shape, seed & _WORD, dtype=np.uint64)) ^ epochs)
    left_size = isqrt(max(n - 1, 0)) + 1
    sizes = np.uint64(left_size), np.uint64(-(-n // left_size) or 1)
    values = _feistel(where.ravel().astype(np.uint64), keys, *sizes)
    while (outside := values >= n).any():
        values[outside] = _feistel(values[outside], keys[outside], *sizes)
    return values.astype(np.int64).reshape(where.shape)


def sample_rows(seed: int, n_rows: int, global_indices: npt.ArrayLike) -> Integers:
    """The row of each global sample index: sample g is position g mod n of epoch g // n, shuffled anew each epoch."""
    indices = np.asarray(global_indices, dtype=np.int64)
    return order(seed, indices // n_rows, n_rows, indices % n_rows)


def _feistel(values: _Words, keys: _Words, left_size: np.uint64, right_size: np.uint64) -> _Words:
    left, right = np.divmod(values, right_size)
    for number in range(0, ROUNDS, 2):
        left = (left + _mix(keys ^ _mix(right + np.uint64(number << 40))) % left_size) % left_size
        right = (right + _mix(keys ^ _mix(left + np.uint64((number + 1) << 40))) % right_size) % right_size
    return left * right_size + right


def _mix(words: _Words) -> _Words:
    """SplitMix64: a bijection of 64-bit words that looks random."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


Flags = npt.NDArray[np.bool_]

_BLOCK = 256  # rows that are looked at together


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Some rows. input_ids: int64 [b, L]. attention_mask: bool [b, L], True where a position is attended and counted.

    document: int64 [b, L], the index of the document that each position belongs to, -1 where there is none.
    frozen: bool [b, L], True at tokens that are given and not counted.
    """

    input_ids: Integers
    attention_mask: Flags
    document: Integers
    frozen: Flags

    @classmethod
    def free(cls, input_ids: Integers, attention_mask: Flags, document: Integers) -> RowBatch:
        """Rows in which nothing is given."""
        return cls(input_ids, attention_mask, document, np.zeros_like(attention_mask))


class Rows(ABC):
    """A table of rows; ``rows[indices]`` reads those rows.

    length: L, the tokens of a row. counted: positions that are attended, EOS and learnt pads included. split_documents,
    truncated_documents: those longer than a row.
    """

    length: int
    counted: int
    split_documents = 0
    truncated_documents = 0

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def _read(self, rows_B: Integers) -> RowBatch:
        """Gather rows."""

    @property
    @abstractmethod
    def documents(self) -> int:
        """The number of documents that `RowBatch.document` counts."""

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of the text in the rows; None where the text is not known or was truncated."""
        return None

    @property
    def characters(self) -> int | None:
        """Characters of the text in the rows; None where the text is not known or was truncated."""
        return None

    @property
    def document_bytes(self) -> Integers:
        """[documents] UTF-8 bytes of each text; 0 where the text in the rows is not known."""
        return np.zeros(self.documents, dtype=np.int64)

    @property
    def document_characters(self) -> Integers:
        """[documents] characters of each text; 0 where the text in the rows is not known."""
        return np.zeros(self.documents, dtype=np.int64)

    def spread(self, count: int) -> Rows:
        """At most `count` rows: all of them, or that many spread evenly."""
        return self if len(self) <= count else SpreadRows(self, count)

    def sample(self, seed: int, global_indices: npt.ArrayLike) -> Integers:
        """The row that each sample of a training run reads, a function of seed and index alone.

        global_indices: integers from 0 on, of any shape. All rows come in shuffled order, then all in another.
        """
        return sample_rows(seed, len(self), global_indices)

    def __getitem__(self, indices: int | slice | npt.ArrayLike) -> RowBatch:
        """The rows with these numbers (one number, a slice or a list of b numbers)."""
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(len(self)))
        rows_B = np.atleast_1d(np.asarray(indices, dtype=np.int64))
        if rows_B.size and (rows_B.min() < 0 or rows_B.max() >= len(self)):
            raise IndexError(f"rows must lie in [0, {len(self)})")
        return self._read(rows_B)

    def check_trainable(self) -> None:
        """Raise an `UnmaskError` where there is too little to train on."""
        if not len(self):
            raise UnmaskError("The training text has no tokens; give more text.")


class SpreadRows(Rows):
    """Some rows of a table, spread evenly over it, with the documents in them numbered anew.

    They cut documents, so bytes and characters are not known.
    """

    def __init__(self, table: Rows, count: int) -> None:
        self.length = table.length
        self.counted = 0
        self._table = table
        self._chosen = np.arange(count) * len(table) // count
        self._numbers = np.zeros(0, dtype=np.int64)
        for start in range(0, count, _BLOCK):
            rows = table[self._chosen[start : start + _BLOCK]]
            self.counted += int(rows.attention_mask.sum())
            self._numbers = np.union1d(self._numbers, rows.document[rows.document >= 0])

    def __len__(self) -> int:
        return len(self._chosen)

    @property
    def documents(self) -> int:
        """Those that the chosen rows have something of."""
        return len(self._numbers)

    def _read(self, rows_B: Integers) -> RowBatch:
        rows = self._table[self._chosen[rows_B]]
        numbers_BL = np.searchsorted(self._numbers, rows.document)
        return replace(rows, document=np.where(rows.document < 0, -1, numbers_BL))
