"""Row tables over tokens, one class per arrangement, and tables that join or mix several others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from unmask.data.cache import Tokens
from unmask.data.rows import Integers, RowBatch, Rows, permute
from unmask.errors import UnmaskError

RELEASE_ROWS = 256
"""After reading this many rows, the pages of the memory map are released."""

MIX_BLOCK = 4096
"""Each block of this many samples has the weights of a mixture exactly."""


class TokenRows(Rows):
    """Base class of the tables over `Tokens`."""

    holds_texts = True
    """Whether the rows hold the texts of all documents and nothing else, so that bytes and characters are known."""

    def __init__(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None) -> None:
        if length < 1:
            raise UnmaskError(f"length must be at least 1, got {length}.")
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
        """[documents] UTF-8 bytes of each text; None if the text in the rows is not known."""
        return self.tokens.byte_counts if self.holds_texts else None

    @property
    def character_counts(self) -> Integers | None:
        """[documents] characters of each text; None if the text in the rows is not known."""
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
    """Consecutive blocks of all documents, each followed by EOS."""

    def __init__(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None) -> None:
        super().__init__(tokens, length, eos_id, pad_id)
        self._starts = self._offsets + np.arange(len(tokens) + 1) if self._eos_count else self._offsets
        self.counted = int(self._starts[-1])

    def __len__(self) -> int:
        return -(-self.counted // self.length)

    def check_trainable(self) -> None:
        """Raise `UnmaskError` if there is not one complete block."""
        if self.counted < self.length:
            raise UnmaskError(
                f"The training text has {self.counted} tokens, fewer than one block of {self.length}; "
                f"choose a length of at most {self.counted} or give more text."
            )

    def _read(self, rows_B: Integers) -> RowBatch:
        position_BL = rows_B[:, None] * self.length + np.arange(self.length)
        document_BM = self._documents_from(rows_B * self.length)
        document_BL = document_BM[:, :-1]
        ids_BL = self._gather(position_BL - self._eos_count * document_BL)
        if self.eos_id is not None:
            ids_BL[document_BL < document_BM[:, 1:]] = self.eos_id
        real_BL = position_BL < self.counted
        ids_BL[~real_BL] = self.pad_id
        return RowBatch(ids_BL, real_BL, np.where(real_BL, document_BL, -1), np.zeros_like(real_BL))

    def _documents_from(self, start_B: Integers) -> Integers:
        """Return [B, M] the documents of M = L + 1 positions from each start.

        Only the first and the last are searched for; in between the index grows wherever a document begins.
        """
        rows, width = len(start_B), self.length + 1
        first_B, last_B = np.searchsorted(self._starts, np.stack([start_B, start_B + self.length]), side="right") - 1
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
            self.truncated_documents = long
        else:
            self.split_documents = long
        self.holds_texts = self.holds_texts and not self.truncated_documents
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
        if self._supervises_padding:
            real_BL = np.ones_like(real_BL)
        return RowBatch(ids_BL, real_BL, np.where(real_BL, document_BL, -1), np.zeros_like(real_BL))


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
        self._asks = asks
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
        return RowBatch(ids_BL, np.ones_like(frozen_BL), document_BL, frozen_BL)


class PromptedRows(DocumentRows):
    """One document per row; everything up to the first separator token is frozen."""

    holds_texts = False

    def __init__(
        self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None, separator: int, text: str
    ) -> None:
        super().__init__(tokens, length, eos_id, pad_id, "error")
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


class JoinedRows(Rows):
    """The rows, and documents, of several tables of the same length, one table after the other."""

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
        """The number of documents of all tables."""
        return int(self._first_documents[-1])

    @property
    def byte_counts(self) -> Integers | None:
        """[documents] UTF-8 bytes of each text; None if those of one table are not known."""
        return _concatenate_known([table.byte_counts for table in self.tables])

    @property
    def character_counts(self) -> Integers | None:
        """[documents] characters of each text; None if those of one table are not known."""
        return _concatenate_known([table.character_counts for table in self.tables])

    def check_trainable(self) -> None:
        """Raise `UnmaskError` if one of the tables has too little text to train on."""
        for table in self.tables:
            table.check_trainable()

    def _read(self, rows_B: Integers) -> RowBatch:
        table_B = np.searchsorted(self._first_rows, rows_B, side="right") - 1
        places, batches = [], []
        for number, table in enumerate(self.tables):
            place_b = np.flatnonzero(table_B == number)
            batch = table[rows_B[place_b] - self._first_rows[number]]
            document_bL = np.where(batch.document < 0, -1, batch.document + self._first_documents[number])
            places.append(place_b)
            batches.append(replace(batch, document=document_bL))
        back_B = np.argsort(np.concatenate(places))
        names = ("input_ids", "attention_mask", "document", "frozen")
        return RowBatch(*(np.concatenate([getattr(batch, name) for batch in batches])[back_B] for name in names))


class MixedRows(JoinedRows):
    """Tables that are sampled in proportion to weights, whatever their sizes.

    Every `MIX_BLOCK` samples have each table in proportion to its weight, in shuffled order. The samples of one table
    come in the order that it has alone.
    """

    def __init__(self, tables: Sequence[Rows], weights: Sequence[float]) -> None:
        super().__init__(tables)
        self.quotas = block_quotas(weights)

    def sample(self, seed: int, global_indices: npt.ArrayLike) -> Integers:
        """Return the row that each sample of a training run reads, a function of seed and index alone."""
        indices = np.asarray(global_indices, dtype=np.int64)
        block, place = np.divmod(indices.ravel(), MIX_BLOCK)
        table, draw = np.empty_like(block), np.empty_like(block)
        for number in np.unique(block):
            here = block == number
            tables, nths = _block_places(seed, int(number), self.quotas)
            table[here] = tables[place[here]]
            draw[here] = number * np.array(self.quotas)[table[here]] + nths[place[here]]
        rows = np.empty_like(draw)
        for number in np.unique(table):
            here = table == number
            rows[here] = self._first_rows[number] + self.tables[number].sample(seed, draw[here])
        return rows.reshape(indices.shape)


def block_quotas(weights: Sequence[float]) -> tuple[int, ...]:
    """Return how many samples of a block each weight gets: rounded down, the rest to the largest remainders."""
    shares = MIX_BLOCK * np.array(weights) / sum(weights)
    whole = np.floor(shares).astype(np.int64)
    largest_first = np.argsort(whole - shares, kind="stable")
    whole[largest_first[: MIX_BLOCK - whole.sum()]] += 1
    if not whole.all():
        least = int(whole.argmin())
        raise UnmaskError(
            f"Part {least + 1} of the mixture has the weight {weights[least]:.3g} of {sum(weights):.3g}, less than one "
            f"sample in {MIX_BLOCK}; raise it or leave the part out."
        )
    return tuple(whole.tolist())


@lru_cache(maxsize=16)
def _block_places(seed: int, block: int, quotas: tuple[int, ...]) -> tuple[Integers, Integers]:
    """Return for each place of a block its table, and how many places of that table come before it."""
    shuffled = permute(seed, block, MIX_BLOCK, np.arange(MIX_BLOCK))
    table = np.searchsorted(np.cumsum(quotas), shuffled, side="right")
    nth = np.empty_like(table)
    for number, quota in enumerate(quotas):
        nth[table == number] = np.arange(quota)
    return table, nth


def _concatenate_known(counts: Sequence[Integers | None]) -> Integers | None:
    known = [one for one in counts if one is not None]
    return np.concatenate(known) if len(known) == len(counts) else None
