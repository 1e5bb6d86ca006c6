"""Tables that join several tables of rows, or mix them by weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from unmask.data.rows import Integers, RowBatch, Rows, permute
from unmask.errors import UnmaskError

MIX_BLOCK = 4096
"""Each block of this many samples has the weights of a mixture exactly."""


class JoinedRows(Rows):
    """The rows, and documents, of several tables of the same length, one table after the other."""

    def __init__(self, tables: Sequence[Rows]) -> None:
        self.tables = tuple(tables)
        self.length = tables[0].length
        self.counted = sum(table.counted for table in tables)
        self._first_rows = np.cumsum([0, *(len(table) for table in tables)])
        self._first_documents = np.cumsum([0, *(table.documents for table in tables)])

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def documents(self) -> int:
        return int(self._first_documents[-1])

    @property
    def byte_counts(self) -> Integers | None:
        return _concatenate_known([table.byte_counts for table in self.tables])

    @property
    def character_counts(self) -> Integers | None:
        return _concatenate_known([table.character_counts for table in self.tables])

    def check_trainable(self) -> None:
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
        names = ("input_ids", "attention_mask", "document", "frozen", "padding")
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
    """Return the samples of each weight in a block: rounded down, and the rest by largest remainder."""
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
    """Return the table of each place of a block, and how many earlier places have the same table."""
    shuffled = permute(seed, block, MIX_BLOCK, np.arange(MIX_BLOCK))
    table = np.searchsorted(np.cumsum(quotas), shuffled, side="right")
    nth = np.empty_like(table)
    for number, quota in enumerate(quotas):
        nth[table == number] = np.arange(quota)
    return table, nth


def _concatenate_known(counts: Sequence[Integers | None]) -> Integers | None:
    known = [one for one in counts if one is not None]
    return np.concatenate(known) if len(known) == len(counts) else None
