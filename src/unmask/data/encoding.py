"""Texts to token ids: long texts are divided into chunks, so that memory stays small.

Chunks depend on the text alone, not on the parts in which a source yields it, so work on them can be resumed by
counting them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from unmask.data.documents import Document
from unmask.errors import UnmaskError
from unmask.io import reading

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Counts = npt.NDArray[np.int64]
Ids = npt.NDArray[np.unsignedinteger]

CHUNK_CHARACTERS = 1 << 16
"""A longer text is encoded in chunks of about this size."""
CONTEXT_CHARACTERS = 64
"""Text on either side of a chunk boundary that decides whether tokens cross it."""
BATCH_CHARACTERS = 1 << 21
LEADING_SPACES = "Ġ▁"
"""A leading space in the vocabularies of byte-level BPE and SentencePiece."""
USE_ANOTHER = "restore tokenizer.json, or use another tokenizer"

WORD_END = re.compile(r"(?<=\S)(?=[ \n])")


class Chunk(NamedTuple):
    """A part of a document's text, usually all of it.

    before: the last characters of the previous chunk. start: position in the document. more: another chunk follows.
    """

    name: str
    text: str
    before: str = ""
    start: int = 0
    more: bool = False


FindEnd = Callable[[str, int, bool], "int | None"]
"""(text, start, more) -> end of the chunk that begins at `start`, or None to take the rest of the text.

more: the text continues after what has been read; None then means to read more first.
"""


def split_into_chunks(documents: Iterable[Document], find_end: FindEnd) -> Iterator[Chunk]:
    """Yield the chunks of all documents in order."""
    text, offset, before = "", 0, ""
    for document in documents:
        if len(document.text) <= CHUNK_CHARACTERS and not (document.more or offset or text):
            yield Chunk(document.name, document.text)
            continue
        text += document.text
        start = 0
        while (end := find_end(text, start, document.more)) is not None:
            yield Chunk(document.name, text[start:end], before, offset + start, True)
            before = text[max(start, end - CONTEXT_CHARACTERS) : end]
            start = end
        text, offset = text[start:], offset + start
        if not document.more:
            yield Chunk(document.name, text, before, offset)
            text, offset, before = "", 0, ""


def end_after_characters(text: str, start: int, more: bool) -> int | None:
    """End a chunk after a fixed number of characters."""
    return start + CHUNK_CHARACTERS if len(text) > start + CHUNK_CHARACTERS else None


def end_after_word(
    text: str, start: int, more: bool, is_boundary: Callable[[str, str], bool] | None = None
) -> int | None:
    """End a chunk before the white space after a word. is_boundary: whether no token crosses (left, right) text."""
    position = start + CHUNK_CHARACTERS
    while found := WORD_END.search(text, position):
        end = found.start()
        if more and len(text) < end + CONTEXT_CHARACTERS:
            return None
        left, right = text[max(start, end - CONTEXT_CHARACTERS) : end], text[end : end + CONTEXT_CHARACTERS]
        if is_boundary is None or is_boundary(left, right):
            return end
        position = end + CHUNK_CHARACTERS
    return None


class ChunkBatch:
    """Chunks that are encoded together. characters, bytes: int64 [n], the size of each chunk."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.text = "".join([chunk.text for chunk in chunks])
        self.characters = np.array([len(chunk.text) for chunk in chunks], dtype=np.int64)
        try:
            self.utf8 = self.text.encode()
        except UnicodeEncodeError as error:
            name, position = self.locate(error.start)
            raise UnmaskError(
                f"{name} has half a surrogate pair at position {position}; decode the text as UTF-8 first."
            ) from error
        self.bytes = self.characters
        if len(self.utf8) != len(self.text):
            self.bytes = np.array([len(chunk.text.encode()) for chunk in chunks], dtype=np.int64)

    @classmethod
    def group(cls, chunks: Iterable[Chunk]) -> Iterator[ChunkBatch]:
        """Group chunks into batches of about `BATCH_CHARACTERS`."""
        batch: list[Chunk] = []
        size = 0
        for chunk in chunks:
            batch.append(chunk)
            size += len(chunk.text)
            if size >= BATCH_CHARACTERS:
                yield cls(batch)
                batch, size = [], 0
        if batch:
            yield cls(batch)

    def locate(self, character: int) -> tuple[str, int]:
        """Return the document of a character of the batch, and its position there."""
        ends = np.cumsum(self.characters)
        index = int(np.searchsorted(ends, character, side="right"))
        chunk = self.chunks[index]
        return chunk.name, chunk.start + character - int(ends[index] - self.characters[index])


Lookup = Callable[[ChunkBatch], tuple[Ids, Counts]]
"""Returns the ids of a batch, concatenated, and the number of ids of each chunk."""


class TextEncoder:
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
        documents = (Document(f"Text {number}", text) for number, text in enumerate(texts))
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
        find_end = end_after_characters if self._lookup else partial(end_after_word, is_boundary=self._is_boundary)
        return split_into_chunks(documents, find_end)

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

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return (start, end) of each token of a text in characters, with the white space before it."""
        spans, before = [], 0
        for start, end in self._backend.encode(text, add_special_tokens=False).offsets:
            spans.append((min(start, before), end))
            before = max(before, end)
        return spans

    def _tokenize(self, batch: ChunkBatch) -> tuple[Ids, Counts]:
        """Encode each chunk after the text before it, since a tokenizer may mark the start of a text."""
        before = iter(self._encode_batch([chunk.before for chunk in batch.chunks if chunk.before]))
        encoded = self._encode_batch([chunk.before + chunk.text for chunk in batch.chunks])
        own = [
            ids[len(next(before)) :] if chunk.before else ids for chunk, ids in zip(batch.chunks, encoded, strict=True)
        ]
        return np.concatenate(own), np.array([len(ids) for ids in own], dtype=np.int64)

    def _encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        with reading("The tokenizer cannot encode the text", USE_ANOTHER):
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

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


_ENCODERS: WeakKeyDictionary[Any, tuple[tuple[int, int | None], TextEncoder]] = WeakKeyDictionary()


def encoder_of(tokenizer: PreTrainedTokenizerFast) -> TextEncoder:
    """Return the tokenizer's encoder, made once (0.2 s for GPT-2) and again after tokens are added."""
    state = len(tokenizer), tokenizer.mask_token_id
    if tokenizer not in _ENCODERS or _ENCODERS[tokenizer][0] != state:
        with reading("The tokenizer cannot be used", USE_ANOTHER):
            _ENCODERS[tokenizer] = state, TextEncoder(tokenizer)
    return _ENCODERS[tokenizer][1]


def vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """Return the number of embeddings that a tokenizer needs: its largest id plus one, special tokens included."""
    return max(tokenizer.get_vocab().values()) + 1


def begins_with_spaces(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Return whether tokens begin with the space before a word."""
    return any(len(token) > 1 and token[0] in LEADING_SPACES for token in tokenizer.get_vocab())


def byte_symbols() -> list[str]:
    """Return the character by which byte-level tokenizers write each byte.

    Printable characters of Latin-1 stand for themselves; the other bytes, in order, are written as U+0100 onwards.
    """
    others = iter(range(256, 512))
    return [chr(byte) if chr(byte).isprintable() and byte != 32 else chr(next(others)) for byte in range(256)]


def byte_pre_tokenizer() -> Any:
    """Return the pre-tokenizer that divides a text into bytes."""
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def character_pre_tokenizer() -> Any:
    """Return the pre-tokenizer that divides a text into characters."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
