"""How documents become rows of equal length: packed, padded or with learnt ends.

A policy makes a table of rows that is computed when it is read: a batch of rows is gathered from the token map by
index arithmetic, and the corpus is never copied. EOS is not stored with the tokens; a policy puts it after a document
where the tokenizer has one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from unmask.data.cache import Tokens
from unmask.errors import UnmaskError
from unmask.registry import Component

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Some rows. input_ids: int64 [b, L]. attention_mask: bool [b, L], True where a position is attended and counted.

    document: int64 [b, L], the index of the document that each position belongs to, -1 where there is none.
    """

    input_ids: Integers
    attention_mask: Flags
    document: Integers


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
        return RowBatch(ids_BL, real_BL, document_BL)


class DocumentRows(Rows):
    """Rows that each hold one document, or a part of one. learnt_pads: what follows a document is EOS and counts."""

    def __init__(
        self,
        tokens: Tokens,
        length: int,
        eos_id: int | None,
        pad_id: int | None,
        overflow: str,
        learnt_pads: bool,
    ) -> None:
        super().__init__(tokens, length, eos_id, pad_id)
        self._learnt_pads = learnt_pads
        self._sizes = np.diff(tokens.offsets) + self._ends
        long = int((self._sizes > length).sum())
        if overflow == "error" and long:
            self._refuse_long(long)
        if overflow == "truncate":
            self.truncated_documents = long
            self._sizes_in_rows = np.minimum(self._sizes, length)
        else:
            self.split_documents = long
            self._sizes_in_rows = self._sizes
        self._first_rows = np.concatenate([[0], np.cumsum(-(-self._sizes_in_rows // length))])
        self.counted = len(self) * length if learnt_pads else int(self._sizes_in_rows.sum())

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def _refuse_long(self, number: int) -> None:
        longest = int(self._sizes.argmax())
        raise UnmaskError(
            f"{number} of {len(self.tokens)} documents do not fit in a row of {self.length} (the longest, "
            f"{self.tokens.name(longest)}, has {self._sizes[longest]} tokens with its EOS); "
            "choose a greater length, or overflow=split or overflow=truncate."
        )

    def _read(self, rows_B: Integers) -> RowBatch:
        document_B = np.searchsorted(self._first_rows, rows_B, side="right") - 1
        start_B = (rows_B - self._first_rows[document_B]) * self.length
        position_BL = start_B[:, None] + np.arange(self.length)
        sizes_B1 = self._sizes[document_B][:, None]
        real_BL = position_BL < sizes_B1
        source_BL = self.tokens.offsets[document_B][:, None] + position_BL
        ids_BL = self._gather(source_BL, position_BL + 1 == sizes_B1)
        document_BL = np.broadcast_to(document_B[:, None], ids_BL.shape).copy()
        if self._learnt_pads:
            ids_BL[~real_BL] = self.eos_id
            return RowBatch(ids_BL, np.ones_like(real_BL), document_BL)
        ids_BL[~real_BL] = self.pad_id
        document_BL[~real_BL] = -1
        return RowBatch(ids_BL, real_BL, document_BL)


class Policy(Component):
    """What every policy does."""

    def rows(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None = None) -> Rows:
        """The table of rows of some documents.

        length: L, the tokens a row. eos_id: put after each document; None where the tokenizer has none. pad_id: what
        stands at positions that are not counted; 0 where the tokenizer has no pad token.
        """
        raise NotImplementedError


class Packed(Policy):
    """Documents joined, each followed by one EOS of its own, and cut into consecutive blocks.

    Without an EOS they are joined directly. The last block is padded, so nothing is dropped.
    """

    name: Literal["packed"] = "packed"

    def rows(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None = None) -> Rows:
        """Blocks of L tokens; only the last may have pads, which are not counted."""
        return PackedRows(tokens, length, eos_id, pad_id)


class _ByDocument(Policy):
    """overflow: a document that does not fit with its EOS is ``split`` over consecutive rows, so that nothing is lost,
    ``truncate``-d to the first L tokens (it then has no EOS: the text goes on), or an ``error``."""

    overflow: Literal["split", "truncate", "error"] = "split"


class Padded(_ByDocument):
    """One document a row, followed by EOS where the tokenizer has one, then by pads that are not counted.

    overflow: what happens to a document that does not fit with its EOS: ``split`` over consecutive rows (nothing is
    lost), ``truncate`` to the first L tokens (without EOS, since the text goes on), or ``error``.
    """

    name: Literal["padded"] = "padded"

    def rows(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None = None) -> Rows:
        """A row, or consecutive rows, for each document; none for an empty one without EOS."""
        return DocumentRows(tokens, length, eos_id, pad_id, self.overflow, learnt_pads=False)


class SupervisedEOS(_ByDocument):
    """One document a row, and EOS from its end to the row's: attended, counted and learnt.

    overflow: as in `Padded`; the last row of a split document is filled with EOS.
    """

    name: Literal["supervised_eos"] = "supervised_eos"

    def rows(self, tokens: Tokens, length: int, eos_id: int | None, pad_id: int | None = None) -> Rows:
        """A row, or consecutive rows, for each document, without uncounted positions."""
        if eos_id is None:
            raise UnmaskError(
                "The length policy 'supervised_eos' needs a tokenizer with an end token, and this one has none; "
                "use the policy 'padded' or 'packed', or a tokenizer such as 'byte'."
            )
        return DocumentRows(tokens, length, eos_id, pad_id, self.overflow, learnt_pads=True)


def rows_of_texts(
    policy: Policy,
    token_ids: Sequence[Sequence[int]],
    length: int,
    eos_id: int | None,
    pad_id: int | None = None,
    texts: Sequence[str] | None = None,
) -> Rows:
    """The rows of texts in memory, by the same rules. texts: what the ids encode, to know bytes and characters."""
    return policy.rows(Tokens.of(token_ids, texts), length, eos_id, pad_id)
