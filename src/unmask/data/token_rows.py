"""Rows of several tables: one after the other, or mixed by weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from unmask.data.cache import Tokens
from unmask.data.rows import Flags, Integers, RowBatch, Rows, order
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
        self._learnt_pads = supervises_padding
        self._truncates = overflow == "truncate"
        self._first_rows, positions, long = self._scan()
        if overflow == "error" and long:
            self._refuse_long(long)
        self.truncated_documents = long if self._truncates else 0
        self.split_documents = long - self.truncated_documents
        self.counted = len(self) * length if supervises_padding else positions

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

    def __init__(
        self, tokens: Tokens, given: Integers, length: int, eos_id: int | None, supervises_padding: bool
    ) -> None:
        super().__init__(tokens, length, eos_id, eos_id if supervises_padding else None, "truncate", supervises_padding)
        self._given = given

    def _read(self, rows_B: Integers) -> RowBatch:
        rows = super()._read(rows_B)
        frozen_BL = np.arange(self.length) < self._given[rows_B][:, None]
        return RowBatch(rows.input_ids, rows.attention_mask, rows.document, frozen_BL)


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


MIXED_BLOCK = 4096
"""Samples in which the weights are met exactly."""


class JoinedRows(Rows):
    """The rows of some tables of one length, one table after the other; so are their documents."""

    def __init__(self, tables: Sequence[Rows]) -> None:
        self.tables = tuple(tables)
        self.length = tables[0].length
        self.counted = sum(table.counted for table in tables)
        self.split_documents = sum(table.split_documents for table in tables)
        self.truncated_documents = sum(table.truncated_documents for table in tables)
        self._first_rows = np.cumsum([0, *(len(table) for table in tables)])
        self._first_documents = np.cumsum([0, *(table.documents for table in tables)])

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def documents(self) -> int:
        """Those of all tables."""
        return int(self._first_documents[-1])

    @property
    def bytes(self) -> int | None:
        """UTF-8 bytes of the text in the rows; None where that of one table is not known."""
        return _sum([table.bytes for table in self.tables])

    @property
    def characters(self) -> int | None:
        """Characters of the text in the rows; None where that of one table is not known."""
        return _sum([table.characters for table in self.tables])

    @property
    def document_bytes(self) -> Integers:
        """[documents] UTF-8 bytes of each text; 0 for all where those of one table are not known."""
        if self.bytes is None:
            return super().document_bytes
        return np.concatenate([table.document_bytes for table in self.tables])

    @property
    def document_characters(self) -> Integers:
        """[documents] characters of each text; 0 for all where those of one table are not known."""
        if self.characters is None:
            return super().document_characters
        return np.concatenate([table.document_characters for table in self.tables])

    def check_trainable(self) -> None:
        """Every table must be."""
        for table in self.tables:
            table.check_trainable()

    def _read(self, rows_B: Integers) -> RowBatch:
        table_B = np.searchsorted(self._first_rows, rows_B, side="right") - 1
        places = [np.flatnonzero(table_B == number) for number in range(len(self.tables))]
        batches = [self._read_from(number, rows_B[place_b]) for number, place_b in enumerate(places)]
        back_B = np.argsort(np.concatenate(places))
        return RowBatch(
            *(
                np.concatenate([getattr(batch, name) for batch in batches])[back_B]
                for name in ("input_ids", "attention_mask", "document", "frozen")
            )
        )

    def _read_from(self, number: int, rows_b: Integers) -> RowBatch:
        batch = self.tables[number][rows_b - self._first_rows[number]]
        document_bL = np.where(batch.document < 0, -1, batch.document + self._first_documents[number])
        return replace(batch, document=document_bL)


class MixedRows(JoinedRows):
    """Tables that are sampled in proportion to weights, whatever their sizes.

    Every `BLOCK` samples hold as many of each table as its weight says, in shuffled places. The samples of one table,
    one after the other, are those that it would give alone.
    """

    def __init__(self, tables: Sequence[Rows], weights: Sequence[float]) -> None:
        super().__init__(tables)
        self.quotas = quotas(weights)

    def sample(self, seed: int, global_indices: npt.ArrayLike) -> Integers:
        """The row that each sample of a training run reads: a function of seed and index alone."""
        indices = np.asarray(global_indices, dtype=np.int64)
        block, place = np.divmod(indices.ravel(), MIXED_BLOCK)
        table, draw = np.empty_like(block), np.empty_like(block)
        for number in np.unique(block):
            here = block == number
            tables, nths = _places(seed, int(number), self.quotas)
            table[here], nth = tables[place[here]], nths[place[here]]
            draw[here] = number * np.array(self.quotas)[table[here]] + nth
        return self._rows_of(seed, table, draw).reshape(indices.shape)

    def _rows_of(self, seed: int, table: Integers, draw: Integers) -> Integers:
        rows = np.empty_like(draw)
        for number in np.unique(table):
            here = table == number
            rows[here] = self._first_rows[number] + self.tables[number].sample(seed, draw[here])
        return rows


def quotas(weights: Sequence[float]) -> tuple[int, ...]:
    """How many of a block's samples each weight gets: rounded down, the rest to the largest remainders."""
    shares = MIXED_BLOCK * np.array(weights) / sum(weights)
    whole = np.floor(shares).astype(np.int64)
    largest_first = np.argsort(whole - shares, kind="stable")
    whole[largest_first[: MIXED_BLOCK - whole.sum()]] += 1
    if not whole.all():
        least = int(whole.argmin())
        raise UnmaskError(
            f"Part {least + 1} of the mixture has the weight {weights[least]:.3g} of {sum(weights):.3g}, less than one "
            f"sample in {BLOCK}; raise it or leave the part out."
        )
    return tuple(whole.tolist())


@lru_cache(maxsize=16)
def _places(seed: int, block: int, quotas: tuple[int, ...]) -> tuple[Integers, Integers]:
    """For each place of a block the table it reads, and how many places of that table come before it in the block."""
    shuffled = order(seed, block, MIXED_BLOCK, np.arange(MIXED_BLOCK))
    table = np.searchsorted(np.cumsum(quotas), shuffled, side="right")
    nth = np.empty_like(table)
    for number, quota in enumerate(quotas):
        nth[table == number] = np.arange(quota)
    return table, nth


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
