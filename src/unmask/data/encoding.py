"""Texts to token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from unmask.data.chunks import Chunk, ChunkBatch, Counts, end_after_characters, end_after_word, split_into_chunks
from unmask.data.sources.base import Document
from unmask.data.tokenizers import byte_pre_tokenizer, byte_symbols, character_pre_tokenizer, vocabulary_size
from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Ids = npt.NDArray[np.unsignedinteger]
Lookup = Callable[[ChunkBatch], tuple[Ids, Counts]]
"""Returns the ids of a batch, concatenated, and the number of ids of each chunk."""


class Encoder:
    """Encodes texts with one tokenizer, without special tokens, truncation and padding.

    Tokenizers of single bytes or characters are replaced by a table, which gives the same ids much faster. A long text
    is divided only where the tokenizer gives the same ids as for the whole.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from tokenizers import Tokenizer

        self.mask_id = tokenizer.mask_token_id
        self.vocabulary_size = vocabulary_size(tokenizer)
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._lookup = _byte_lookup(self._backend) or _character_lookup(self._backend)

    @property
    def identity(self) -> str:
        """Equal for encoders that give the same ids."""
        return json.dumps([self._backend.to_str(), self.mask_id])

    def __call__(self, texts: Iterable[str]) -> list[Ids]:
        """Return the ids of each text."""
        documents = (Document(f"Text {number}", text) for number, text in zip(count(), texts, strict=False))
        encoded: list[list[Ids]] = [[]]
        for batch in ChunkBatch.group(self.split(documents)):
            ids, sizes = self.encode(batch)
            for chunk, part in zip(batch.chunks, np.split(ids, np.cumsum(sizes)[:-1]), strict=True):
                encoded[-1].append(part)
                if not chunk.more:
                    encoded.append([])
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in encoded[:-1]]

    def split(self, documents: Iterable[Document]) -> Iterator[Chunk]:
        """Divide documents into chunks where that does not change their ids."""
        return split_into_chunks(documents, end_after_characters if self._lookup else self._end_after_word)

    def encode(self, batch: ChunkBatch) -> tuple[Ids, Counts]:
        """Return the ids of a batch, concatenated, and int64 [n], the number of ids of each chunk."""
        ids, sizes = (self._lookup or self._tokenize)(batch)
        if self.mask_id is not None and (masks := np.flatnonzero(ids == self.mask_id)).size:
            name = batch.chunks[int(np.searchsorted(np.cumsum(sizes), masks[0], side="right"))].name
            raise UnmaskError(
                f"{name} contains the mask token (id {self.mask_id}) as text, where it would stand for a masked token; "
                "remove it from the text or use another tokenizer."
            )
        return ids, sizes

    def _tokenize(self, batch: ChunkBatch) -> tuple[Ids, Counts]:
        """Encode each chunk after the text before it, so that a mark of the text's start is not added to each chunk."""
        before = iter(self._encode_batch([chunk.before for chunk in batch.chunks if chunk.before]))
        encoded = self._encode_batch([chunk.before + chunk.text for chunk in batch.chunks])
        own = [
            ids[len(next(before)) :] if chunk.before else ids for chunk, ids in zip(batch.chunks, encoded, strict=True)
        ]
        return np.concatenate(own), np.array([len(ids) for ids in own], dtype=np.int64)

    def _encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def _end_after_word(self, text: str, start: int, more: bool) -> int | None:
        return end_after_word(text, start, more, self._is_boundary)

    def _is_boundary(self, left: str, right: str) -> bool:
        whole, alone = self._encode_batch([left + right, left])
        return np.array_equal(whole[: len(alone)], alone)


def _byte_lookup(backend: Tokenizer) -> Lookup | None:
    vocabulary = backend.get_vocab(with_added_tokens=False)
    symbols = byte_symbols()
    if set(vocabulary) != set(symbols) or not _only_splits(backend, byte_pre_tokenizer()):
        return None
    table = np.array([vocabulary[symbol] for symbol in symbols], dtype=np.uint16)
    return lambda batch: (table[np.frombuffer(batch.utf8, dtype=np.uint8)], batch.bytes)


def _character_lookup(backend: Tokenizer) -> Lookup | None:
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if max(map(len, vocabulary)) > 1 or not _only_splits(backend, character_pre_tokenizer()):
        return None
    unknown = np.uint32(len(vocabulary))
    table = np.full(max(map(ord, vocabulary)) + 2, unknown, dtype=np.uint32)
    table[[ord(character) for character in vocabulary]] = list(vocabulary.values())

    def lookup(batch: ChunkBatch) -> tuple[Ids, Counts]:
        code_points = np.frombuffer(batch.text.encode("utf-32-le"), dtype="<u4")
        ids = table[np.minimum(code_points, len(table) - 1)]
        if (missing := np.flatnonzero(ids == unknown)).size:
            index = int(missing[0])
            name, position = batch.locate(index)
            character = batch.text[index]
            raise UnmaskError(
                f"{name} has the character {character!r} (U+{ord(character):04X}) at position {position}, which is not "
                "in the tokenizer's alphabet; clean the text, extend the alphabet or use the tokenizer 'byte'."
            )
        return ids, batch.characters

    return lookup


def _only_splits(backend: Tokenizer, pre_tokenizer: Any) -> bool:
    """Return whether the tokenizer does nothing to a text but apply this pre-tokenizer."""
    own = backend.pre_tokenizer
    if own is None or backend.normalizer is not None or own.__getstate__() != pre_tokenizer.__getstate__():
        return False
    return all(token.special for token in backend.get_added_tokens_decoder().values())


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text, without special tokens; names of special tokens in a text are ordinary text.

    Raises `UnmaskError` for a text that contains the mask's id or a character without a token.
    """
    return [ids.tolist() for ids in encoder_of(tokenizer)(texts)]


def encode_one(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return the ids of a single text."""
    return encode(tokenizer, [text])[0]


_ENCODERS: WeakKeyDictionary[Any, tuple[tuple[int, int | None], Encoder]] = WeakKeyDictionary()


def encoder_of(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    """Return the tokenizer's encoder, made once (0.2 s for GPT-2) and again after tokens are added."""
    state = len(tokenizer), tokenizer.mask_token_id
    if tokenizer not in _ENCODERS or _ENCODERS[tokenizer][0] != state:
        _ENCODERS[tokenizer] = state, Encoder(tokenizer)
    return _ENCODERS[tokenizer][1]
