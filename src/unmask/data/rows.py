"""Tables of rows, computed when they are read: a batch is gathered from the token map, the corpus is never copied.

EOS is not stored with the tokens; a table puts it after a document where the tokenizer has one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unmask.data.cache import Tokens
from unmask.errors import UnmaskError

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


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

    counted: positions that are attended, EOS and learnt pads included. bytes, characters: of the text in the rows; None
    where the text is not known or was truncated. split_documents, truncated_documents: those longer than a row.
    """

    counted: int
    split_documents = 0
    truncated_documents = 0

    def __init__(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None) -> None:
        if length < 1:
            raise UnmaskError(f"A row of length {length} holds nothing; choose a length of at least 1.")
        self.tokens = tokens
        self.length = length
        self.eos_id = eos_id
        self.pad_id = 0 if pad_id is None else pad_id
        self._ends = int(eos_id is not None)
        self._ids = np.asarray(tokens.ids) if len(tokens.ids) else np.zeros(1, dtype=np.int64)

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def _read(self, rows_B: Integers) -> RowBatch:
        """Gather rows."""

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of the text in the rows."""
        return self._total(self.tokens.byte_counts)

    @property
    def characters(self) -> int | None:
        """Characters of the text in the rows."""
        return self._total(self.tokens.character_counts)

    @property
    def documents(self) -> int:
        """The number of documents that `RowBatch.document` counts."""
        return len(self.tokens)

    @property
    def document_bytes(self) -> Integers:
        """[documents] UTF-8 bytes of each text; 0 where the text in the rows is not known."""
        return self._sizes_of(self.tokens.byte_counts)

    @property
    def document_characters(self) -> Integers:
        """[documents] characters of each text; 0 where the text in the rows is not known."""
        return self._sizes_of(self.tokens.character_counts)

    def spread(self, count: int) -> Rows:
        """At most `count` rows: all of them, or that many spread evenly."""
        return self if len(self) <= count else SpreadRows(self, count)

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

    def _sizes_of(self, counts: Integers | None) -> Integers:
        known = counts is not None and not self.truncated_documents
        return np.asarray(counts) if known else np.zeros(self.documents, dtype=np.int64)

    def _total(self, counts: Integers | None) -> int | None:
        return None if counts is None or self.truncated_documents else int(counts.sum())

    def _gather(self, source_BL: Integers, ending_BL: Flags) -> Integers:
        """Tokens at positions of the map (those past its end are the caller's to overwrite), EOS where one ends."""
        ids_BL = self._ids[np.minimum(source_BL, len(self._ids) - 1)].astype(np.int64)
        if self.eos_id is not None:
            ids_BL[ending_BL] = self.eos_id
        return ids_BL


class PackedRows(Rows):
    """Consecutive blocks of all documents joined."""

    def __init__(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None) -> None:
        super().__init__(tokens, length, eos_id, pad_id)
        self._starts = np.asarray(tokens.offsets) + self._ends * np.arange(len(tokens) + 1)
        self.counted = int(self._starts[-1])

    def __len__(self) -> int:
        return -(-self.counted // self.length)

    def check_trainable(self) -> None:
        """Training needs one complete block."""
        if self.counted < self.length:
            raise UnmaskError(
                f"The training text has {self.counted} tokens, less than one block of {self.length}; "
                f"choose a length of at most {self.counted} or give more text."
            )

    def _read(self, rows_B: Integers) -> RowBatch:
        position_BL = rows_B[:, None] * self.length + np.arange(self.length)
        real_BL = position_BL < self.counted
        document_BL = np.searchsorted(self._starts[:-1], position_BL, side="right") - 1
        source_BL = position_BL - self._ends * document_BL
        ids_BL = self._gather(source_BL, position_BL + 1 == self._starts[document_BL + 1])
        ids_BL[~real_BL] = self.pad_id
        document_BL[~real_BL] = -1
        return RowBatch.free(ids_BL, real_BL, document_BL)


class DocumentRows(Rows):
    """Rows that each hold one document, or a part of one.

    overflow: 'split', 'truncate' or 'error', for a document that is longer than a row. learnt_pads: pads belong to the
    document, are attended and are counted.
    """

    def __init__(
        self,
        tokens: Tokens,
        length: int,
        eos_id: int | None,
        pad_id: int | None,
        overflow: str,
        learnt_pads: bool = False,
    ) -> None:
        super().__init__(tokens, length, eos_id, pad_id)
        self._learnt_pads = learnt_pads
        self._sizes = np.diff(tokens.offsets) + self._ends
        long = int((self._sizes > length).sum())
        if overflow == "error" and long:
            self._refuse_long(long)
        kept = np.minimum(self._sizes, length) if overflow == "truncate" else self._sizes
        self.truncated_documents = long if overflow == "truncate" else 0
        self.split_documents = long - self.truncated_documents
        self._first_rows = np.concatenate([[0], np.cumsum(-(-kept // length))]).astype(np.int64)
        self.counted = len(self) * length if learnt_pads else int(kept.sum())

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def _refuse_long(self, number: int) -> None:
        longest = int(self._sizes.argmax())
        raise UnmaskError(
            f"{number} of {len(self.tokens)} documents do not fit in a row of {self.length} (the longest, "
            f"{self.tokens.name(longest)}, takes {self._sizes[longest]}); "
            "choose a greater length, or overflow=split or overflow=truncate."
        )

    def _read(self, rows_B: Integers) -> RowBatch:
        document_B = np.searchsorted(self._first_rows, rows_B, side="right") - 1
        start_B = (rows_B - self._first_rows[document_B]) * self.length
        position_BL = start_B[:, None] + np.arange(self.length)
        sizes_B1 = self._sizes[document_B][:, None]
        source_BL = self.tokens.offsets[document_B][:, None] + position_BL
        ids_BL = self._gather(source_BL, position_BL + 1 == sizes_B1)
        pad_BL = position_BL >= sizes_B1
        ids_BL[pad_BL] = self.pad_id
        document_BL = np.repeat(document_B[:, None], self.length, axis=1)
        if self._learnt_pads:
            return RowBatch.free(ids_BL, np.ones_like(pad_BL), document_BL)
        document_BL[pad_BL] = -1
        return RowBatch.free(ids_BL, ~pad_BL, document_BL)


class SpreadRows(Rows):
    """Some rows of a table, spread evenly over it. They cut documents, so bytes and characters are not known."""

    def __init__(self, table: Rows, count: int) -> None:
        tokens = Tokens(table.tokens.ids, table.tokens.offsets, None, None)
        super().__init__(tokens, table.length, table.eos_id, table.pad_id)
        self._table = table
        self._chosen = np.arange(count) * len(table) // count
        self.counted = int(table[self._chosen].attention_mask.sum())

    def __len__(self) -> int:
        return len(self._chosen)

    def _read(self, rows_B: Integers) -> RowBatch:
        return self._table[self._chosen[rows_B]]


class GivenRows(DocumentRows):
    """One text a row, behind a text that is given: the first `given` [n] tokens of each document are frozen."""

    def __init__(self, tokens: Tokens, given: Integers, length: int, eos_id: int | None, learnt_pads: bool) -> None:
        super().__init__(tokens, length, eos_id, eos_id if learnt_pads else None, "truncate", learnt_pads)
        self._given = given

    def _read(self, rows_B: Integers) -> RowBatch:
        rows = super()._read(rows_B)
        frozen_BL = np.arange(self.length) < self._given[rows_B][:, None]
        return RowBatch(rows.input_ids, rows.attention_mask, rows.document, frozen_BL)
