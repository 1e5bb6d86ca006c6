"""Rows over the tokens of documents: a batch is gathered from the token map, the corpus is never copied.

EOS is not stored with the tokens; a table puts it after a document where the tokenizer has one. Nothing is kept in
memory for each document: there may be a hundred million.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unmask.data.cache import Tokens
from unmask.data.rows import Flags, Integers, RowBatch, Rows
from unmask.errors import UnmaskError

RELEASE_ROWS = 256  # rows after which the pages of the map are given back
STRIDE = 256  # of so many documents the first one's row is known
BLOCK = STRIDE << 12  # documents that are looked at together


class TokenRows(Rows):
    """What the tables over `Tokens` have in common."""

    def __init__(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None) -> None:
        if length < 1:
            raise UnmaskError(f"A row of length {length} holds nothing; choose a length of at least 1.")
        self.tokens = tokens
        self.length = length
        self.eos_id = eos_id
        self.pad_id = 0 if pad_id is None else pad_id
        self._ends = int(eos_id is not None)
        self._ids = np.asarray(tokens.ids) if len(tokens.ids) else np.zeros(1, dtype=np.int64)
        self._offsets = np.asarray(tokens.offsets)
        self._read_rows = 0

    @property
    def documents(self) -> int:
        """All documents, whether or not they have a row."""
        return len(self.tokens)

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of the text in the rows; None where the text is not known or was truncated."""
        return None if self.truncated_documents else self.tokens.bytes

    @property
    def characters(self) -> int | None:
        """Characters of the text in the rows; None where the text is not known or was truncated."""
        return None if self.truncated_documents else self.tokens.characters

    @property
    def document_bytes(self) -> Integers:
        """[documents] UTF-8 bytes of each text; 0 where the text in the rows is not known."""
        return self._sizes_of(self.tokens.byte_counts)

    @property
    def document_characters(self) -> Integers:
        """[documents] characters of each text; 0 where the text in the rows is not known."""
        return self._sizes_of(self.tokens.character_counts)

    def _sizes_of(self, counts: Integers | None) -> Integers:
        known = counts is not None and not self.truncated_documents
        return np.asarray(counts) if known else np.zeros(self.documents, dtype=np.int64)

    def _gather(self, source_BL: Integers, ending_BL: Flags) -> Integers:
        """Tokens at positions of the map (those past its end are the caller's to overwrite), EOS where one ends."""
        ids_BL = self._ids[np.minimum(source_BL, len(self._ids) - 1)].astype(np.int64)
        if self.eos_id is not None:
            ids_BL[ending_BL] = self.eos_id
        self._read_rows += len(source_BL)
        if self._read_rows >= RELEASE_ROWS:
            self.tokens.release()
            self._read_rows = 0
        return ids_BL


class PackedRows(TokenRows):
    """Consecutive blocks of all documents joined."""

    def __init__(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None) -> None:
        super().__init__(tokens, length, eos_id, pad_id)
        self.counted = int(self._starts(np.array(len(tokens))))

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
        following_BM = self._documents_from(rows_B * self.length)
        document_BL = following_BM[:, :-1]
        ending_BL = document_BL < following_BM[:, 1:]
        ids_BL = self._gather(position_BL - self._ends * document_BL, ending_BL)
        real_BL = position_BL < self.counted
        ids_BL[~real_BL] = self.pad_id
        return RowBatch.free(ids_BL, real_BL, np.where(real_BL, document_BL, -1))

    def _starts(self, document: Integers) -> Integers:
        """Where documents begin when each is followed by its EOS; the one past the last begins at the end of all."""
        return self._offsets[document] + self._ends * document

    def _documents_from(self, start_B: Integers) -> Integers:
        """[B, L + 1] the documents of L + 1 positions from each start on.

        Only the first and the last are searched for: between them the number grows wherever a document begins.
        """
        rows, width = len(start_B), self.length + 1
        first_B, last_B = self._document_at(np.stack([start_B, start_B + self.length]))
        begun_B = last_B - first_B
        row_N = np.repeat(np.arange(rows), begun_B)
        nth_N = np.arange(len(row_N)) - np.repeat(np.cumsum(begun_B) - begun_B, begun_B)
        place_N = self._starts(first_B[row_N] + 1 + nth_N) - start_B[row_N]
        begins_BM = np.bincount(row_N * width + place_N, minlength=rows * width).reshape(rows, width)
        return first_B[:, None] + np.cumsum(begins_BM, axis=1)

    def _document_at(self, position: Integers) -> Integers:
        """The last document that begins at or before each position, found by halving."""
        low, high = np.zeros_like(position), np.full_like(position, len(self.tokens))
        while (low < high).any():
            middle = (low + high + 1) // 2
            begun = self._starts(middle) <= position
            low, high = np.where(begun, middle, low), np.where(begun, high, middle - 1)
        return low


class DocumentRows(TokenRows):
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
        self._truncates = overflow == "truncate"
        self._first_rows, positions, long = self._scan()
        if overflow == "error" and long:
            self._refuse_long(long)
        self.truncated_documents = long if self._truncates else 0
        self.split_documents = long - self.truncated_documents
        self.counted = len(self) * length if learnt_pads else positions

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def _blocks(self) -> Iterator[Integers]:
        """The sizes of all documents, with their EOS, so many at a time."""
        for start in range(0, len(self.tokens), BLOCK):
            yield np.diff(self._offsets[start : start + BLOCK + 1]) + self._ends
            self.tokens.release()

    def _scan(self) -> tuple[Integers, int, int]:
        """The first row of every stride of documents, then the number of all; positions taken; documents too long."""
        rows, positions, long = [np.zeros(1, dtype=np.int64)], 0, 0
        for sizes in self._blocks():
            kept = self._kept(sizes)
            rows.append(np.add.reduceat(-(-kept // self.length), np.arange(0, len(kept), STRIDE)))
            positions += int(kept.sum())
            long += int((sizes > self.length).sum())
        return np.cumsum(np.concatenate(rows)), positions, long

    def _kept(self, sizes: Integers) -> Integers:
        return np.minimum(sizes, self.length) if self._truncates else sizes

    def _refuse_long(self, number: int) -> None:
        longest = ((int(sizes.max()), int(sizes.argmax()), block) for block, sizes in enumerate(self._blocks()))
        size, place, block = max(longest, key=lambda found: found[0])
        raise UnmaskError(
            f"{number} of {len(self.tokens)} documents do not fit in a row of {self.length} (the longest, "
            f"{self.tokens.name(block * BLOCK + place)}, takes {size}); "
            "choose a greater length, or overflow=split or overflow=truncate."
        )

    def _find(self, rows_B: Integers) -> tuple[Integers, Integers]:
        """The document of each row, and which of the document's rows it is: from the first row of the stride, count."""
        stride_B = np.searchsorted(self._first_rows, rows_B, side="right") - 1
        document_BS = stride_B[:, None] * STRIDE + np.arange(STRIDE + 1)
        sizes_BS = np.diff(self._offsets[np.minimum(document_BS, len(self.tokens))]) + self._ends
        number_BS = -(-self._kept(sizes_BS) // self.length)
        stop_BS = self._first_rows[stride_B][:, None] + np.cumsum(number_BS, axis=1)
        nth_B1 = (stop_BS <= rows_B[:, None]).sum(axis=1, keepdims=True)
        start_B1 = np.take_along_axis(stop_BS - number_BS, nth_B1, axis=1)
        return stride_B * STRIDE + nth_B1[:, 0], rows_B - start_B1[:, 0]

    def _read(self, rows_B: Integers) -> RowBatch:
        document_B, nth_B = self._find(rows_B)
        position_BL = (nth_B * self.length)[:, None] + np.arange(self.length)
        start_B1, stop_B1 = self._offsets[document_B][:, None], self._offsets[document_B + 1][:, None]
        size_B1 = stop_B1 - start_B1 + self._ends
        ids_BL = self._gather(start_B1 + position_BL, position_BL + 1 == size_B1)
        pad_BL = position_BL >= size_B1
        ids_BL[pad_BL] = self.pad_id
        document_BL = np.repeat(document_B[:, None], self.length, axis=1)
        if self._learnt_pads:
            return RowBatch.free(ids_BL, np.ones_like(pad_BL), document_BL)
        document_BL[pad_BL] = -1
        return RowBatch.free(ids_BL, ~pad_BL, document_BL)


class GivenRows(DocumentRows):
    """One text a row, behind a text that is given: the first `given` [n] tokens of each document are frozen."""

    def __init__(self, tokens: Tokens, given: Integers, length: int, eos_id: int | None, learnt_pads: bool) -> None:
        super().__init__(tokens, length, eos_id, eos_id if learnt_pads else None, "truncate", learnt_pads)
        self._given = given

    def _read(self, rows_B: Integers) -> RowBatch:
        rows = super()._read(rows_B)
        frozen_BL = np.arange(self.length) < self._given[rows_B][:, None]
        return RowBatch(rows.input_ids, rows.attention_mask, rows.document, frozen_BL)
