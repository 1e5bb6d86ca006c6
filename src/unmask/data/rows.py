"""Tables of rows, computed when they are read, and the shuffled order in which training reads them.

`TokenRows` are tables over the `Tokens` of documents, one class per arrangement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from unmask.errors import UnmaskError

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
T = TypeVar("T")

TEXT_TOKENS, POSITIONS = "text tokens", "positions"
"""Denominators of figures per token: the tokens of the texts with one end each, or, in records of earlier versions, all
counted positions with learned padding."""
FEISTEL_ROUNDS = 8
ROWS_AT_ONCE = 256
RELEASE_ROWS = 256
"""After reading this many rows, the pages of the memory map are released."""


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


def spread_indices(total: int, count: int | None) -> list[int]:
    """At most `count` indices below `total`, evenly spread; None: all of them."""
    count = total if count is None else min(count, total)
    return [number * total // count for number in range(count)]


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Some rows of a table.

    input_ids: int64 [B, L]. attention_mask: bool [B, L], True at positions that are attended and counted. document:
    int64 [B, L], the index of each position's document, -1 for padding that is not counted. frozen: bool [B, L], True
    at given tokens, which are not counted. padding: bool [B, L], True behind the end of a text, counted or not.
    """

    input_ids: Integers
    attention_mask: Flags
    document: Integers
    frozen: Flags
    padding: Flags


def reverse_complement_rows(rows: RowBatch, chosen_B: Flags, complements: Integers) -> RowBatch:
    """Rows of DNA, of which the chosen ones [B] are read on the opposite strand; padding stays behind the text.

    complements: [V] the token on the opposite strand for every token.
    """
    size_B1 = (~rows.padding).sum(axis=1, keepdims=True)
    place_BL = np.arange(rows.input_ids.shape[1])
    flipped_BL = chosen_B[:, None] & (place_BL < size_B1)
    source_BL = np.where(flipped_BL, size_B1 - 1 - place_BL, place_BL)
    ids_BL = np.take_along_axis(rows.input_ids, source_BL, axis=1)
    return replace(
        rows,
        input_ids=np.where(flipped_BL, complements[ids_BL], ids_BL),
        document=np.take_along_axis(rows.document, source_BL, axis=1),
        frozen=np.take_along_axis(rows.frozen, source_BL, axis=1),
    )


class Rows(ABC):
    """A table of rows; ``rows[indices]`` reads some of them.

    length: L, the tokens of a row. counted: attended positions, EOS and supervised padding included.
    """

    length: int
    counted: int

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
        self._chosen = np.array(spread_indices(len(table), count))
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


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of documents, concatenated without special tokens.

    ids: [N] unsigned integers. offsets: int64 [n + 1]; document i is ``ids[offsets[i]:offsets[i + 1]]``. byte_counts,
    character_counts: int64 [n], the size of each document's text, or None where the text is not known.
    """

    ids: npt.NDArray[Any]
    offsets: Integers
    byte_counts: Integers | None
    character_counts: Integers | None

    @classmethod
    def of(cls, token_ids: Sequence[Sequence[int]], texts: Sequence[str] | None = None) -> Tokens:
        """Make tokens of lists of ids. texts: one per list, whose bytes and characters are counted."""
        offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in token_ids])]).astype(np.int64)
        flat = np.fromiter((number for ids in token_ids for number in ids), dtype=np.int64, count=int(offsets[-1]))
        if texts is None:
            return cls(flat, offsets, None, None)
        sizes = np.array([(len(text.encode()), len(text)) for text in texts], dtype=np.int64).reshape(-1, 2)
        return cls(flat, offsets, sizes[:, 0], sizes[:, 1])

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.offsets) - 1

    def document(self, index: int) -> npt.NDArray[Any]:
        """Return the ids of one document."""
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def name(self, index: int) -> str:
        """Return what error messages call a document."""
        return f"document {index}"

    def release(self) -> None:
        """Free memory that reading has taken."""


class TokenRows(Rows):
    """Base class of the tables over `Tokens`."""

    holds_texts = True
    """Whether the rows hold the texts of all documents and nothing else, so that bytes and characters are known."""

    def __init__(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None) -> None:
        self.tokens = tokens
        self.length = length
        self.eos_id = eos_id
        self.pad_id = 0 if pad_id is None else pad_id
        self._eos_count = int(eos_id is not None)
        self._ids = np.asarray(tokens.ids) if len(tokens.ids) else np.zeros(1, dtype=np.int64)
        self._offsets = np.asarray(tokens.offsets)
        self._rows_read = 0

    @property
    def documents(self) -> int:
        """The number of documents, with or without a row."""
        return len(self.tokens)

    @property
    def byte_counts(self) -> Integers | None:
        return self.tokens.byte_counts if self.holds_texts else None

    @property
    def character_counts(self) -> Integers | None:
        return self.tokens.character_counts if self.holds_texts else None

    def _gather(self, index_BL: Integers) -> Integers:
        """Read tokens; the caller overwrites those with an index past the end."""
        ids_BL = self._ids[np.minimum(index_BL, len(self._ids) - 1)].astype(np.int64)
        self._rows_read += len(index_BL)
        if self._rows_read >= RELEASE_ROWS:
            self.tokens.release()
            self._rows_read = 0
        return ids_BL


class PackedRows(TokenRows):
    """Consecutive blocks of all documents, each followed by EOS; with a `bos_id`, between BOS and another EOS."""

    def __init__(
        self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None, bos_id: int | None = None
    ) -> None:
        super().__init__(tokens, length, eos_id, pad_id)
        self._bos_id = bos_id
        self._block = length if bos_id is None else length - 2
        self._starts = self._offsets + np.arange(len(tokens) + 1) if self._eos_count else self._offsets
        self._total = int(self._starts[-1])
        self.counted = self._total + (length - self._block) * len(self)

    def __len__(self) -> int:
        return -(-self._total // self._block)

    def check_trainable(self) -> None:
        """Raise `UnmaskError` if there is not one complete block."""
        if self.counted < self.length:
            raise UnmaskError(
                f"The training text has {self.counted} tokens, fewer than one block of {self.length}; "
                f"choose a length of at most {self.counted} or give more text."
            )

    def _read(self, rows_B: Integers) -> RowBatch:
        position_BL = rows_B[:, None] * self._block + np.arange(self._block)
        document_BM = self._documents_from(rows_B * self._block)
        document_BL = document_BM[:, :-1]
        ids_BL = self._gather(position_BL - self._eos_count * document_BL)
        if self.eos_id is not None:
            ids_BL[document_BL < document_BM[:, 1:]] = self.eos_id
        real_BL = position_BL < self._total
        ids_BL[~real_BL] = self.pad_id
        if self._bos_id is not None:
            ids_BL, real_BL, document_BL = self._framed(ids_BL, real_BL, document_BL)
        return RowBatch(ids_BL, real_BL, np.where(real_BL, document_BL, -1), np.zeros_like(real_BL), ~real_BL)

    def _framed(self, ids_BK: Integers, real_BK: Flags, document_BK: Integers) -> tuple[Integers, Flags, Integers]:
        """Put BOS before and EOS behind each block; they belong to the documents of their neighbours."""
        assert self._bos_id is not None
        assert self.eos_id is not None
        size_B1 = real_BK.sum(axis=1, keepdims=True)
        ids_BL = np.pad(ids_BK, ((0, 0), (1, 1)), constant_values=self.pad_id)
        ids_BL[:, 0] = self._bos_id
        np.put_along_axis(ids_BL, size_B1 + 1, self.eos_id, axis=1)
        document_BL = np.pad(document_BK, ((0, 0), (1, 1)), mode="edge")
        np.put_along_axis(document_BL, size_B1 + 1, np.take_along_axis(document_BL, size_B1, axis=1), axis=1)
        return ids_BL, np.arange(self.length) <= size_B1 + 1, document_BL

    def _documents_from(self, start_B: Integers) -> Integers:
        """Return [B, M] the documents of M = (size of a block) + 1 positions from each start.

        Only the first and the last are searched for; in between the index grows wherever a document begins.
        """
        rows, width = len(start_B), self._block + 1
        first_B, last_B = np.searchsorted(self._starts, np.stack([start_B, start_B + self._block]), side="right") - 1
        begun_B = last_B - first_B
        row_N = np.repeat(np.arange(rows), begun_B)
        nth_N = np.arange(len(row_N)) - np.repeat(np.cumsum(begun_B) - begun_B, begun_B)
        place_N = self._starts[first_B[row_N] + 1 + nth_N] - start_B[row_N]
        begins_BM = np.bincount(row_N * width + place_N, minlength=rows * width).reshape(rows, width)
        return first_B[:, None] + np.cumsum(begins_BM, axis=1)


class DocumentRows(TokenRows):
    """Rows that each hold one document, or a part of one.

    overflow: 'split', 'truncate' or 'error', for a document that is longer than a row. supervises_padding: padding
    belongs to the document, is attended and is counted.
    """

    def __init__(
        self,
        tokens: Tokens,
        length: int,
        eos_id: int | None,
        pad_id: int | None,
        overflow: str,
        supervises_padding: bool = False,
    ) -> None:
        super().__init__(tokens, length, eos_id, pad_id)
        self._supervises_padding = supervises_padding
        sizes = np.diff(self._offsets) + self._eos_count
        long = int((sizes > length).sum())
        if overflow == "error" and long:
            longest = int(sizes.argmax())
            raise UnmaskError(
                f"{long} of {len(tokens)} documents do not fit in a row of {length} (the longest, "
                f"{tokens.name(longest)}, takes {sizes[longest]}); "
                "choose a greater length, or overflow=split or overflow=truncate."
            )
        if overflow == "truncate":
            sizes = np.minimum(sizes, length)
            self.holds_texts = self.holds_texts and not long
        self._first_row = np.concatenate([[0], np.cumsum(-(-sizes // length))])
        self.counted = len(self) * length if supervises_padding else int(sizes.sum())

    def __len__(self) -> int:
        return int(self._first_row[-1])

    def _read(self, rows_B: Integers) -> RowBatch:
        document_B = np.searchsorted(self._first_row, rows_B, side="right") - 1
        nth_B = rows_B - self._first_row[document_B]
        position_BL = (nth_B * self.length)[:, None] + np.arange(self.length)
        start_B1, stop_B1 = self._offsets[document_B][:, None], self._offsets[document_B + 1][:, None]
        size_B1 = stop_B1 - start_B1 + self._eos_count
        ids_BL = self._gather(start_B1 + position_BL)
        if self.eos_id is not None:
            ids_BL[position_BL + 1 == size_B1] = self.eos_id
        real_BL = position_BL < size_B1
        ids_BL[~real_BL] = self.pad_id
        document_BL = np.repeat(document_B[:, None], self.length, axis=1)
        counted_BL = np.ones_like(real_BL) if self._supervises_padding else real_BL
        return RowBatch(ids_BL, counted_BL, np.where(counted_BL, document_BL, -1), np.zeros_like(real_BL), ~real_BL)


class GivenRows(DocumentRows):
    """One text per row, after given tokens: the first `given` [n] tokens of each document are frozen."""

    def __init__(self, tokens: Tokens, given: Integers, length: int, eos_id: int | None, supervised: bool) -> None:
        super().__init__(tokens, length, eos_id, eos_id if supervised else None, "truncate", supervised)
        self._given = given

    def _read(self, rows_B: Integers) -> RowBatch:
        return replace(super()._read(rows_B), frozen=np.arange(self.length) < self._given[rows_B][:, None])


class OverlaidRows(TokenRows):
    """Answers to questions of the same length: tokens on which both agree are frozen.

    A document is a question, one separator token and an answer. A row is the answer or, with `asks`, the whole
    document, of which the question and the separator are frozen too.
    """

    holds_texts = False

    def __init__(self, tokens: Tokens, length: int, asks: bool) -> None:
        super().__init__(tokens, length, None, None)
        self._size = length if asks else 2 * length + 1
        self.counted = len(self) * length
        wrong = np.flatnonzero(np.diff(self._offsets) != self._size)
        if wrong.size or not self._size % 2:
            number = int(wrong[0]) if wrong.size else 0
            raise UnmaskError(
                "The policy 'overlaid' needs a question and an answer of equally many tokens with one token between "
                f"them, and data.length must be that of {'all three' if asks else 'the answer'}; {tokens.name(number)} "
                f"has {len(tokens.document(number))} tokens and data.length is {length}."
            )

    def __len__(self) -> int:
        return len(self.tokens)

    def _read(self, rows_B: Integers) -> RowBatch:
        ids_BD = self._gather(rows_B[:, None] * self._size + np.arange(self._size))
        cells = self._size // 2
        frozen_BD = np.ones(ids_BD.shape, dtype=np.bool_)
        frozen_BD[:, cells + 1 :] = ids_BD[:, :cells] == ids_BD[:, cells + 1 :]
        ids_BL, frozen_BL = ids_BD[:, -self.length :], frozen_BD[:, -self.length :]
        document_BL = np.repeat(rows_B[:, None], self.length, axis=1)
        return RowBatch(ids_BL, np.ones_like(frozen_BL), document_BL, frozen_BL, np.zeros_like(frozen_BL))


class PromptedRows(DocumentRows):
    """One document per row; everything up to the first separator token is frozen."""

    holds_texts = False

    def __init__(
        self,
        tokens: Tokens,
        length: int,
        eos_id: int | None,
        pad_id: int | None,
        separator: int,
        text: str,
        supervises_padding: bool = False,
    ) -> None:
        super().__init__(tokens, length, eos_id, pad_id, "error", supervises_padding)
        self._separator = separator
        places = np.flatnonzero(np.asarray(tokens.ids) == separator)
        separators = np.diff(np.searchsorted(places, self._offsets))
        if not separators.all():
            raise UnmaskError(
                f"The policy 'prompted' looks for {text!r} between a question and its answer, but "
                f"{tokens.name(int(separators.argmin()))} has none; set data.policy.separator."
            )

    def _read(self, rows_B: Integers) -> RowBatch:
        rows = super()._read(rows_B)
        is_separator_BL = rows.input_ids == self._separator
        return replace(rows, frozen=is_separator_BL.cumsum(axis=1) - is_separator_BL == 0)


def prefetch(items: Iterator[T], ahead: int = 3) -> Generator[T, None, None]:
    """Yield items that are computed in another thread, at most `ahead` of them in advance."""
    end: Any = object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="unmask-reader") as reader:
        coming = deque(reader.submit(next, items, end) for _ in range(ahead))
        try:
            while (item := coming.popleft().result()) is not end:
                coming.append(reader.submit(next, items, end))
                yield item
        finally:
            reader.shutdown(cancel_futures=True)
