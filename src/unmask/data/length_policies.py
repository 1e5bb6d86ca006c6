"""How documents become rows of equal length: packed, padded, with learnt ends, or as questions with answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from unmask.data.cache import Tokens
from unmask.data.rows import Rows
from unmask.data.token_rows import DocumentRows, GivenRows, OverlaidRows, PackedRows, PromptedRows
from unmask.errors import UnmaskError
from unmask.registry import Component

Encode = Callable[[str], Sequence[int]]
"""The ids of a text."""


class Marks(NamedTuple):
    """What a policy knows of a tokenizer: EOS, put after each document; what stands at positions that are not counted
    (0 where there is no pad); and for those that look for a token, how a text is encoded."""

    eos_id: int | None
    pad_id: int | None = None
    encode: Encode | None = None


class Policy(Component):
    """What every policy does."""

    ends_with_eos: ClassVar[bool] = True
    """Whether a row holds one text, which its first EOS ends."""

    learnt_pads: ClassVar[bool] = False
    """Whether what follows a text is EOS that counts."""

    def frame(self, ids: Sequence[int], length: int, eos_id: int | None) -> list[int]:
        """A text with blanks as the model met texts in training: with its end, where the policy shows one."""
        room = length - len(ids)
        if eos_id is None or room <= 0 or not self.ends_with_eos:
            return list(ids)
        return [*ids, *[eos_id] * (room if self.learnt_pads else 1)]

    @abstractmethod
    def rows(self, tokens: Tokens, length: int, marks: Marks) -> Rows:
        """The table of rows of some documents, `length` tokens a row."""


class Packed(Policy):
    """Documents joined, each followed by one EOS of its own, and cut into consecutive blocks.

    Without an EOS they are joined directly. The last block is padded, so nothing is dropped.
    """

    name: Literal["packed"] = "packed"
    ends_with_eos: ClassVar[bool] = False

    def rows(self, tokens: Tokens, length: int, marks: Marks) -> Rows:
        """Blocks of L tokens; only the last may have pads, which are not counted."""
        return PackedRows(tokens, length, marks.eos_id, marks.pad_id)


class _ByDocument(Policy):
    """Policies that give each document rows of its own.

    overflow: what happens to a document that does not fit with its EOS: ``split`` over consecutive rows (nothing is
    lost), ``truncate`` to the first L tokens (without EOS, since the text goes on), or ``error``.
    """

    overflow: Literal["split", "truncate", "error"] = "split"


class Padded(_ByDocument):
    """One document a row, followed by EOS where the tokenizer has one, then by pads that are not counted."""

    name: Literal["padded"] = "padded"

    def rows(self, tokens: Tokens, length: int, marks: Marks) -> Rows:
        """A row, or consecutive rows, for each document; none for an empty one without EOS."""
        return DocumentRows(tokens, length, marks.eos_id, marks.pad_id, self.overflow)


class SupervisedEOS(_ByDocument):
    """One document a row, and EOS from its end to the end of the row (its last one): attended, counted and learnt."""

    name: Literal["supervised_eos"] = "supervised_eos"
    learnt_pads: ClassVar[bool] = True

    def rows(self, tokens: Tokens, length: int, marks: Marks) -> Rows:
        """A row, or consecutive rows, for each document, without uncounted positions."""
        if marks.eos_id is None:
            raise UnmaskError(
                "The length policy 'supervised_eos' needs a tokenizer with an end token, and this one has none; "
                "use the policy 'padded' or 'packed', or a tokenizer such as 'byte'."
            )
        return DocumentRows(tokens, length, marks.eos_id, marks.eos_id, self.overflow, learnt_pads=True)


class Overlaid(Policy):
    """``question=answer``, both of one length, laid over each other: where they agree the token is given.

    A row is the answer alone, all of it but the given tokens to be predicted; with ``asks`` the question stands before
    it, for a network that reads from left to right. What stands between the two is any one token.
    """

    name: Literal["overlaid"] = "overlaid"
    ends_with_eos: ClassVar[bool] = False
    asks: bool = False

    def rows(self, tokens: Tokens, length: int, marks: Marks) -> Rows:
        """One row for each document, without EOS and pads."""
        return OverlaidRows(tokens, length, self.asks)


class Prompted(Policy):
    """``question=answer``, one a row: everything up to the first ``separator`` is given, the answer and EOS count."""

    name: Literal["prompted"] = "prompted"
    separator: str = "="

    def rows(self, tokens: Tokens, length: int, marks: Marks) -> Rows:
        """One row for each document; one that does not fit is an error."""
        assert marks.encode is not None, "the policy 'prompted' looks for a token"
        ids = marks.encode(self.separator)
        if len(ids) != 1:
            raise UnmaskError(
                f"The separator {self.separator!r} of the policy 'prompted' is {len(ids)} tokens to this tokenizer; "
                "choose one that is a single token."
            )
        return PromptedRows(tokens, length, marks.eos_id, marks.pad_id, ids[0], self.separator)


def rows_of_texts(
    policy: Policy,
    token_ids: Sequence[Sequence[int]],
    length: int,
    eos_id: int | None,
    pad_id: int | None = None,
    texts: Sequence[str] | None = None,
    encode: Encode | None = None,
) -> Rows:
    """The rows of texts in memory, by the same rules. texts: what the ids encode, to know bytes and characters."""
    return policy.rows(Tokens.of(token_ids, texts), length, Marks(eos_id, pad_id, encode))


def rows_given(
    policy: Policy,
    given: Sequence[Sequence[int]],
    token_ids: Sequence[Sequence[int]],
    length: int,
    eos_id: int | None,
    texts: Sequence[str],
) -> Rows:
    """One row for each text behind its given tokens, which are frozen; bytes and characters are the text's alone."""
    for prefix, ids, text in zip(given, token_ids, texts, strict=True):
        needed = len(prefix) + len(ids) + int(eos_id is not None)
        if needed > length:
            raise UnmaskError(
                f"The text {text[:40]!r} and what is given take {needed} tokens and a row of this model has {length}; "
                "shorten one of them."
            )
    sizes = Tokens.of(token_ids, texts)
    joined = Tokens.of([[*prefix, *ids] for prefix, ids in zip(given, token_ids, strict=True)])
    tokens = Tokens(joined.ids, joined.offsets, sizes.byte_counts, sizes.character_counts)
    frozen = np.array([len(prefix) for prefix in given], dtype=np.int64)
    return GivenRows(tokens, frozen, length, eos_id, policy.learnt_pads)
