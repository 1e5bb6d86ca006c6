"""Texts to ids with one tokenizer, as fast as the machine allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from unmask.data.pieces import Counts, Joined
from unmask.data.tokenizers import byte_symbols, into_bytes, into_characters
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from unmask.data.pieces import Piece, after_characters, batches, cut, word_end
from unmask.data.sources import Document
from unmask.data.tokenizers import vocabulary_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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


class Encoder:
    """Turns texts into ids with one tokenizer, without special tokens.

    The tokenizer's own settings (truncation, padding) have no part in it. Where every token is one byte or one
    character, ids are looked up in a table; that is the same encoding, much faster. A long text is cut into pieces
    between words, and only where the tokenizer gives the same ids as for the whole.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from tokenizers import Tokenizer

        self.mask_id = tokenizer.mask_token_id
        self.vocabulary_size = vocabulary_size(tokenizer)
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._table = table_of(self._backend)
        self._find_cut = partial(word_end, joins=self._joins) if self._table is None else after_characters

    @property
    def identity(self) -> str:
        """A text that is equal for two encoders when they encode alike."""
        return json.dumps([self._backend.to_str(), self.mask_id])

    def __call__(self, texts: Iterable[str], names: Iterable[str] | None = None) -> list[Ids]:
        """One array of ids for each text; ``names`` say in an error which text is meant."""
        named = zip(texts, names or (f"Text {number}" for number in count()), strict=names is not None)
        documents = (Document(name, text) for text, name in named)
        encoded: list[list[Ids]] = [[]]
        for piece, ids in self._each(documents):
            encoded[-1].append(ids)
            if not piece.more:
                encoded.append([])
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in encoded[:-1]]

    def pieces(self, documents: Iterable[Document]) -> Iterator[Piece]:
        """Documents cut where that does not change their ids. Texts without white space stay whole."""
        return cut(documents, self._find_cut)

    def encode(self, joined: Joined) -> tuple[Ids, Counts]:
        """The ids of some pieces, one after the other, and int64 [n], how many each piece has."""
        ids, sizes = self._table(joined) if self._table is not None else self._by_backend(joined)
        if self.mask_id is not None and (masks := np.flatnonzero(ids == self.mask_id)).size:
            self._refuse_mask(joined.pieces[int(np.searchsorted(np.cumsum(sizes), masks[0], side="right"))].name)
        return ids, sizes

    def _each(self, documents: Iterable[Document]) -> Iterator[tuple[Piece, Ids]]:
        for batch in batches(self.pieces(documents)):
            ids, sizes = self.encode(Joined(batch))
            yield from zip(batch, np.split(ids, np.cumsum(sizes)[:-1]), strict=True)

    def _by_backend(self, joined: Joined) -> tuple[Ids, Counts]:
        """A piece is encoded behind the text that stands before it, whose ids are then dropped.

        So a tokenizer that marks the beginning of a text does not mark the beginning of each piece.
        """
        pieces = joined.pieces
        known = iter(self._batch([piece.before for piece in pieces if piece.before]))
        encoded = self._batch([piece.before + piece.text for piece in pieces])
        own = [
            ids[len(next(known)) :] if piece.before else ids for piece, ids in zip(joined.pieces, encoded, strict=True)
        ]
        return np.concatenate(own), np.array([len(ids) for ids in own], dtype=np.int64)

    def _batch(self, texts: Sequence[str]) -> list[Ids]:
        """The tokenizer spreads a batch over all cores by itself and lets other threads run meanwhile.

        It would not with TOKENIZERS_PARALLELISM=false in the environment, which nothing here sets.
        """
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def _joins(self, left: str, right: str) -> bool:
        """Whether the ids of a text begin with those of its left part."""
        whole, alone = self._batch([left + right, left])
        return np.array_equal(whole[: len(alone)], alone)

    def _refuse_mask(self, name: str) -> None:
        raise UnmaskError(
            f"{name} contains the mask token (id {self.mask_id}) as text, where it would stand for a hidden token; "
            "take that word out of the text or use another tokenizer."
        )


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text: no special tokens added, and the name of a special token in a text is ordinary text.

    An id equal to the mask's nevertheless is an `UnmaskError`, as is a character the tokenizer has no token for.
    """
    return [ids.tolist() for ids in encoder_of(tokenizer)(texts)]


def encode_one(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The ids of a single text."""
    return encode(tokenizer, [text])[0]


_ENCODERS: WeakKeyDictionary[Any, tuple[tuple[int, int | None], Encoder]] = WeakKeyDictionary()


def encoder_of(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    """The encoder of a tokenizer, made once (GPT-2's takes a fifth of a second) and again when tokens were added."""
    state = len(tokenizer), tokenizer.mask_token_id
    if tokenizer not in _ENCODERS or _ENCODERS[tokenizer][0] != state:
        _ENCODERS[tokenizer] = state, Encoder(tokenizer)
    return _ENCODERS[tokenizer][1]
