"""Length policies: how documents become rows of equal length.

`packed`, `padded` and `supervised_eos` hold plain text; `overlaid` and `prompted` hold a question with its answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from unmask.data.encoding import encode_one
from unmask.data.rows import DocumentRows, GivenRows, OverlaidRows, PackedRows, PromptedRows, Rows, Tokens
from unmask.errors import UnmaskError
from unmask.registry import Component

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Encode = Callable[[str], Sequence[int]]


class SpecialTokens(NamedTuple):
    """The tokens that policies add to documents, and `encode` for policies that look for a token in them.

    eos_id: appended to each document. pad_id: written at uncounted positions (None: 0). bos_id: begins framed blocks
    (None: EOS).
    """

    eos_id: int | None
    pad_id: int | None = None
    encode: Encode | None = None
    bos_id: int | None = None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> SpecialTokens:
        bos_id = tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        return cls(tokenizer.eos_token_id, tokenizer.pad_token_id, partial(encode_one, tokenizer), bos_id)

    @property
    def begin_id(self) -> int | None:
        """The token that begins framed blocks."""
        return self.eos_id if self.bos_id is None else self.bos_id


class Policy(Component):
    """Base class of the length policies."""

    ends_with_eos: ClassVar[bool] = True
    """Whether a row holds one text that ends at the first EOS."""

    @property
    def supervises_padding(self) -> bool:
        """Whether a text is followed by EOS tokens that count, up to the end of the row."""
        return False

    @property
    def begins_with_bos(self) -> bool:
        """Whether every row begins with BOS."""
        return False

    def append_eos(self, ids: Sequence[int], length: int, eos_id: int | None) -> list[int]:
        """Append the EOS tokens that a text of this policy has in a row of `length` tokens."""
        room = length - len(ids)
        if eos_id is None or room <= 0 or not self.ends_with_eos:
            return list(ids)
        return [*ids, *[eos_id] * (room if self.supervises_padding else 1)]

    @abstractmethod
    def rows(self, tokens: Tokens, length: int, special: SpecialTokens) -> Rows:
        """Return the table of rows, of `length` tokens each, that holds the documents."""


class Packed(Policy):
    """Documents, each followed by EOS, concatenated and cut into blocks.

    The last block is padded, so nothing is dropped. Without EOS documents are concatenated directly.

    framed: whether each row is BOS, a block of L - 2 tokens, and EOS, all of them counted, as in the published runs on
    OpenWebText. A tokenizer without BOS or CLS has EOS at both ends.
    """

    name: Literal["packed"] = "packed"
    ends_with_eos: ClassVar[bool] = False
    framed: bool = False

    @property
    def begins_with_bos(self) -> bool:
        return self.framed

    def rows(self, tokens: Tokens, length: int, special: SpecialTokens) -> Rows:
        """Return consecutive blocks; padding in the last one is not counted."""
        if not self.framed:
            return PackedRows(tokens, length, special.eos_id, special.pad_id)
        if special.eos_id is None:
            raise UnmaskError("data.policy.framed needs a tokenizer with an EOS token; leave it out.")
        if length < 3:
            raise UnmaskError(f"data.length must be at least 3 for framed rows, got {length}.")
        return PackedRows(tokens, length, special.eos_id, special.pad_id, special.begin_id)


class Padded(Policy):
    """One document per row, followed by EOS and by padding that is not counted.

    overflow: what to do with a document that does not fit with its EOS: ``split`` it over consecutive rows,
    ``truncate`` it to the first L tokens (without EOS), or raise an ``error``.
    """

    overflow: Literal["split", "truncate", "error"] = "split"
    name: Literal["padded"] = "padded"

    def rows(self, tokens: Tokens, length: int, special: SpecialTokens) -> Rows:
        """Return the rows of each document in turn; an empty document without EOS has none."""
        return DocumentRows(tokens, length, special.eos_id, special.pad_id, self.overflow)


class SupervisedEOS(Policy):
    """One document per row, followed by EOS up to the end of the row; every EOS is attended and counted.

    overflow: as for `Padded`.
    """

    overflow: Literal["split", "truncate", "error"] = "split"
    name: Literal["supervised_eos"] = "supervised_eos"

    @property
    def supervises_padding(self) -> bool:
        return True

    def rows(self, tokens: Tokens, length: int, special: SpecialTokens) -> Rows:
        if special.eos_id is None:
            raise UnmaskError(
                "The length policy 'supervised_eos' needs a tokenizer with an EOS token; "
                "use the policy 'padded' or 'packed', or a tokenizer such as 'byte'."
            )
        return DocumentRows(tokens, length, special.eos_id, special.eos_id, self.overflow, supervises_padding=True)


class Overlaid(Policy):
    """``question=answer``, where both have the same length and a token is given where they agree.

    A row is the answer, with the given tokens frozen. With ``asks`` a row is the question, the separator and the
    answer, for autoregressive models; question and separator are frozen too. The separator is any single token.
    """

    name: Literal["overlaid"] = "overlaid"
    ends_with_eos: ClassVar[bool] = False
    asks: bool = False

    def rows(self, tokens: Tokens, length: int, special: SpecialTokens) -> Rows:
        """Return one row per document, without EOS and padding."""
        return OverlaidRows(tokens, length, self.asks)


class Prompted(Policy):
    """``question=answer``, one per row: everything up to the first ``separator`` is frozen, answer and EOS count.

    supervised_eos: whether the answer is followed by EOS up to the end of the row, all of them attended and counted, so
    that a masked model learns how long an answer is.
    """

    name: Literal["prompted"] = "prompted"
    separator: str = "="
    supervised_eos: bool = False

    @property
    def supervises_padding(self) -> bool:
        return self.supervised_eos

    def rows(self, tokens: Tokens, length: int, special: SpecialTokens) -> Rows:
        """Return one row per document; a document that does not fit is an error."""
        assert special.encode is not None, "the policy 'prompted' encodes its separator"
        ids = special.encode(self.separator)
        if len(ids) != 1:
            raise UnmaskError(
                f"The separator {self.separator!r} of the policy 'prompted' is {len(ids)} tokens; "
                "choose one that is a single token."
            )
        if self.supervised_eos and special.eos_id is None:
            raise UnmaskError("data.policy.supervised_eos needs a tokenizer with an EOS token; leave it out.")
        pad_id = special.eos_id if self.supervised_eos else special.pad_id
        return PromptedRows(
            tokens, length, special.eos_id, pad_id, ids[0], self.separator, supervises_padding=self.supervised_eos
        )


def rows_given(
    policy: Policy,
    given: Sequence[Sequence[int]],
    token_ids: Sequence[Sequence[int]],
    length: int,
    special: SpecialTokens,
    texts: Sequence[str],
) -> Rows:
    """Return one row per text, after its given tokens, which are frozen; bytes and characters are those of the text.

    Rows have `length` tokens if the policy supervises padding, and otherwise as many as the longest text needs.
    """
    eos_id = special.eos_id
    if policy.begins_with_bos and special.begin_id is not None:
        given = [[special.begin_id, *prefix] for prefix in given]
    joined = [[*prefix, *ids] for prefix, ids in zip(given, token_ids, strict=True)]
    needed = [len(ids) + int(eos_id is not None) for ids in joined]
    for text, size in zip(texts, needed, strict=True):
        if size > length:
            raise UnmaskError(
                f"The text {text[:40]!r} and its given part take {size} tokens, but the model's rows have {length}; "
                "shorten one of them."
            )
    if not policy.supervises_padding:
        length = max(needed)
    frozen = np.array([len(prefix) for prefix in given], dtype=np.int64)
    return GivenRows(Tokens.of(joined, texts), frozen, length, eos_id, policy.supervises_padding)
