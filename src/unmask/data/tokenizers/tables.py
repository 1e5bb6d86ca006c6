"""Encoding by looking up: for tokenizers in which every token is one byte or one character."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from unmask.data.pieces import Counts, Joined
from unmask.data.tokenizers.symbols import byte_symbols, into_bytes, into_characters
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = npt.NDArray[np.unsignedinteger]


class Table(Protocol):
    """The ids of joined pieces, one after the other, and the number of them that each piece has."""

    def __call__(self, joined: Joined) -> tuple[Ids, Counts]: ...


def table_of(backend: Tokenizer) -> Table | None:
    """The look-up that encodes as this tokenizer does; None where there is none."""
    return _byte_table(backend) or _character_table(backend)


def _byte_table(backend: Tokenizer) -> Table | None:
    vocabulary = backend.get_vocab(with_added_tokens=False)
    symbols = byte_symbols()
    if set(vocabulary) != set(symbols) or not _cuts_as(backend, into_bytes()):
        return None
    table = np.array([vocabulary[symbol] for symbol in symbols], dtype=np.uint16)
    return lambda joined: (table[np.frombuffer(joined.utf8, dtype=np.uint8)], joined.bytes)


def _character_table(backend: Tokenizer) -> Table | None:
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if max(map(len, vocabulary)) > 1 or not _cuts_as(backend, into_characters()):
        return None
    unknown = np.uint32(len(vocabulary))
    table = np.full(max(map(ord, vocabulary)) + 2, unknown, dtype=np.uint32)
    table[[ord(character) for character in vocabulary]] = list(vocabulary.values())

    def look_up(joined: Joined) -> tuple[Ids, Counts]:
        code_points = np.frombuffer(joined.text.encode("utf-32-le"), dtype="<u4")
        ids = table[np.minimum(code_points, len(table) - 1)]
        if (strange := np.flatnonzero(ids == unknown)).size:
            _refuse_character(joined, int(strange[0]))
        return ids, joined.characters

    return look_up


def _cuts_as(backend: Tokenizer, pre_tokenizer: Any) -> bool:
    """Whether texts go to the tokenizer's model as they are, cut in just this way, and no token was added to it."""
    own = backend.pre_tokenizer
    if own is None or backend.normalizer is not None or own.__getstate__() != pre_tokenizer.__getstate__():
        return False
    return all(token.special for token in backend.get_added_tokens_decoder().values())


def _refuse_character(joined: Joined, at: int) -> None:
    name, position = joined.whose(at)
    character = joined.text[at]
    raise UnmaskError(
        f"{name} has the character {character!r} (U+{ord(character):04X}) at position {position}, which is not in the "
        "tokenizer's alphabet; clean the text, extend the alphabet or use the tokenizer 'byte'."
    )
