"""Rows of several tables: one after the other, or mixed by weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from unmask.data.order import order
from unmask.data.rows import Integers, RowBatch, Rows
from unmask.errors import UnmaskError

BLOCK = 4096
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
        block, place = np.divmod(indices.ravel(), BLOCK)
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
    shares = BLOCK * np.array(weights) / sum(weights)
    whole = np.floor(shares).astype(np.int64)
    largest_first = np.argsort(whole - shares, kind="stable")
    whole[largest_first[: BLOCK - whole.sum()]] += 1
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
    shuffled = order(seed, block, BLOCK, np.arange(BLOCK))
    table = np.searchsorted(np.cumsum(quotas), shuffled, side="right")
    nth = np.empty_like(table)
    for number, quota in enumerate(quotas):
        nth[table == number] = np.arange(quota)
    return table, nth


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
