"""Text to token ids and back: four kinds of tokenizer, all handed out as plain `PreTrainedTokenizerFast` objects.

So a tokenizer saves, loads and decodes as every Hugging Face tokenizer does. Encoding goes through `encode` here, which
adds no special tokens and reads the literal text ``[MASK]`` or ``[EOS]`` in a document as the ordinary characters it is
made of: only the program hides or ends a text, never the text itself.
"""

from __future__ import annotations

import json
import re
import string
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from unmask.data.sources import Document
from unmask.errors import UnmaskError
from unmask.registry import Component

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Documents = Callable[[], Iterator[Document]]
Ids = npt.NDArray[np.unsignedinteger]

EOS = "[EOS]"
MASK = "[MASK]"
TEXT8_ALPHABET = " " + string.ascii_lowercase
LONG = 1 << 17  # a text of more characters is encoded in pieces, so that memory stays small

_WORD_END = re.compile(r"(?<=\S)(?=[ \n])")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerComponent(Component):
    """What every tokenizer component does."""

    @abstractmethod
    def build(self, documents: Documents) -> PreTrainedTokenizerFast:
        """Make the tokenizer. ``documents`` gives the training text, from its start at each call."""


class ByteTokenizer(TokenizerComponent):
    """UTF-8 bytes: ids 0 to 255 are the bytes, 256 is [EOS], 257 is [MASK]. Every text comes back exactly."""

    name: Literal["byte"] = "byte"

    def build(self, documents: Documents) -> PreTrainedTokenizerFast:
        """The same for every text."""
        from tokenizers import Tokenizer, decoders, models

        vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = _into_bytes()
        tokenizer.decoder = decoders.ByteLevel()
        return _with_special_tokens(tokenizer, eos_token=EOS, mask_token=MASK)


class CharTokenizer(TokenizerComponent):
    """Characters of a fixed alphabet, ids in its order, then [MASK]; no EOS. Any other character is an error.

    alphabet: the characters; text8's 27 (space, a to z) unless told, which makes a vocabulary of 28.
    """

    name: Literal["char"] = "char"
    alphabet: str = TEXT8_ALPHABET

    @field_validator("alphabet")
    @classmethod
    def _has_each_character_once(cls, alphabet: str) -> str:
        if not alphabet or len(set(alphabet)) < len(alphabet):
            raise ValueError("an alphabet has at least one character and each only once")
        return alphabet

    def build(self, documents: Documents) -> PreTrainedTokenizerFast:
        """The same for every text."""
        from tokenizers import Tokenizer, decoders, models

        vocabulary = {character: number for number, character in enumerate(self.alphabet)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = _into_characters()
        tokenizer.decoder = decoders.Fuse()
        return _with_special_tokens(tokenizer, mask_token=MASK)


class BPETokenizer(TokenizerComponent):
    """Byte-level byte-pair encoding, trained on the training documents. Every text comes back exactly.

    vocab_size: all tokens: the 256 bytes, the learnt pairs, [EOS] (last but one) and [MASK] (last). A text too small
    for so many pairs (each must be seen twice) gives a smaller vocabulary.
    """

    name: Literal["bpe"] = "bpe"
    vocab_size: int = Field(default=4096, ge=258)

    def build(self, documents: Documents) -> PreTrainedTokenizerFast:
        """Learn the pairs; the same documents give the same tokenizer."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size - 2,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator((piece for document in documents() for piece in pieces(document.text)), trainer)
        return _with_special_tokens(tokenizer, eos_token=EOS, mask_token=MASK)


class HuggingFaceTokenizer(TokenizerComponent):
    """A published tokenizer: a local folder, or a name on the Hugging Face hub; no code from there is run.

    path: the folder or name. A folder with bare vocabulary files serves too: ``vocab.json`` with ``merges.txt`` (as
    GPT-2 has, where ``<|endoftext|>`` is the EOS), or ``vocab.txt`` (as BERT has; it is lower-cased when the vocabulary
    has no capitals). A tokenizer without mask token gets [MASK] as its last id, so GPT-2's vocabulary becomes 50,258;
    one without EOS uses its separator token as EOS where it has one (BERT's [SEP]).
    """

    name: Literal["huggingface"] = "huggingface"
    path: str

    def build(self, documents: Documents) -> PreTrainedTokenizerFast:
        """Load it; the documents are not looked at."""
        tokenizer = _load(self.path)
        if tokenizer.eos_token_id is None and tokenizer.sep_token is not None:
            tokenizer.eos_token = tokenizer.sep_token
        if tokenizer.mask_token_id is None:
            tokenizer.add_special_tokens({"mask_token": MASK})
        return tokenizer


class Encoder:
    """Turns texts into ids with one tokenizer, without special tokens.

    The tokenizer's own settings (truncation, padding) have no part in it. Where every token is one byte or one
    character, ids are looked up in a table; that is the same encoding, much faster. A long text is cut into pieces
    between words, and only where the tokenizer gives the same ids on both sides of the cut.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        from tokenizers import Tokenizer

        self.mask_id = tokenizer.mask_token_id
        self.vocabulary_size = vocabulary_size(tokenizer)
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self._look_up = _byte_table(self._backend) or _character_table(self._backend)

    @property
    def identity(self) -> str:
        """A text that is equal for two encoders when they encode alike."""
        return json.dumps([self._backend.to_str(), self.mask_id])

    def __call__(self, texts: Sequence[str], names: Sequence[str] | None = None) -> list[Ids]:
        """One array of ids for each text; ``names`` say in an error which text is meant."""
        names = names if names is not None else [f"Text {number}" for number in range(len(texts))]
        for name, text in zip(names, texts, strict=True):
            _check_encodable(name, text)
        if self._look_up is not None:
            encoded = [self._look_up(name, text) for name, text in zip(names, texts, strict=True)]
        else:
            short = iter(self._batch([text for text in texts if len(text) <= LONG]))
            encoded = [next(short) if len(text) <= LONG else self._long(text) for text in texts]
        for name, ids in zip(names, encoded, strict=True):
            self._check_unmasked(name, ids)
        return encoded

    def _batch(self, texts: Sequence[str]) -> list[Ids]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def _long(self, text: str) -> Ids:
        parts = list(pieces(text))
        if not all(self._joins(left[-64:], right[:64]) for left, right in pairwise(parts)):
            parts = [text]
        groups = [parts[start : start + 8] for start in range(0, len(parts), 8)]
        return np.concatenate([ids for group in groups for ids in self._batch(group)])

    def _joins(self, left: str, right: str) -> bool:
        whole, *parts = self._batch([left + right, left, right])
        return np.array_equal(whole, np.concatenate(parts))

    def _check_unmasked(self, name: str, ids: Ids) -> None:
        if self.mask_id is not None and (ids == self.mask_id).any():
            raise UnmaskError(
                f"{name} contains the mask token (id {self.mask_id}) as text, where it would stand for a hidden token; "
                "take that word out of the text or use another tokenizer."
            )


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """The ids of each text: no special tokens added, and the name of a special token in a text is ordinary text.

    An id equal to the mask's nevertheless is an `UnmaskError`, as is a character the tokenizer has no token for.
    """
    return [ids.tolist() for ids in encoder_of(tokenizer)(texts)]


def vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """The number of rows of an embedding for it: the largest id plus one, special tokens (the mask too) included."""
    return max(tokenizer.get_vocab().values()) + 1


_ENCODERS: WeakKeyDictionary[Any, tuple[tuple[int, int | None], Encoder]] = WeakKeyDictionary()


def encoder_of(tokenizer: PreTrainedTokenizerFast) -> Encoder:
    """The encoder of a tokenizer, made once (GPT-2's takes a fifth of a second) and again when tokens were added."""
    state = len(tokenizer), tokenizer.mask_token_id
    if tokenizer not in _ENCODERS or _ENCODERS[tokenizer][0] != state:
        _ENCODERS[tokenizer] = state, Encoder(tokenizer)
    return _ENCODERS[tokenizer][1]


def pieces(text: str, size: int = LONG) -> Iterator[str]:
    """Cut a text at the first end of a word after each ``size`` characters; the white space goes to the right."""
    start = 0
    while cut := _WORD_END.search(text, start + size):
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]


def _with_special_tokens(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    new = [token for token in dict.fromkeys(special_tokens.values()) if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens(new)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **special_tokens,  # type: ignore[arg-type]
    )


def _load(path: str) -> PreTrainedTokenizerFast:
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return _load_published(path)
    if any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "config.json")):
        return _load_published(str(folder))
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return _load_bare_bpe(folder)
    if (folder / "vocab.txt").is_file():
        return _load_bare_wordpiece(folder)
    raise UnmaskError(
        f"The folder {folder} has no tokenizer in it (tokenizer.json, vocab.json with merges.txt, or vocab.txt); "
        "name a folder that has one."
    )


def _load_published(path: str) -> PreTrainedTokenizerFast:
    """Through AutoTokenizer, then as the plain class, so that a checkpoint does not depend on the special one."""
    from transformers import AutoTokenizer

    try:
        published = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise UnmaskError(
            f"No tokenizer could be loaded from '{path}', neither as a folder here nor as a name on the Hugging Face "
            f"hub ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}); "
            "check the name, and the network if it is on the hub."
        ) from error
    if getattr(published, "backend_tokenizer", None) is None:
        raise UnmaskError(f"The tokenizer '{path}' has no fast version (tokenizer.json); choose one that has.")
    tokens = {name: getattr(published, name) for name in _NAMED_TOKENS if getattr(published, name, None) is not None}
    return _with_special_tokens(published.backend_tokenizer, **tokens)


def _load_bare_bpe(folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    end = "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_special_tokens(tokenizer, bos_token=end, eos_token=end, unk_token=end)


def _load_bare_wordpiece(folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token="[UNK]"))
    ordinary = (token for token in tokenizer.get_vocab() if not token.startswith("["))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not any(token != token.lower() for token in ordinary))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _with_special_tokens(
        tokenizer, unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token=MASK
    )


def _into_bytes() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _into_characters() -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")


def _byte_symbols() -> list[str]:
    """The visible character by which byte-level tokenizers write each byte.

    The printable characters of Latin-1 stand for themselves and the other bytes, in order, for those from 256 on.
    """
    others = iter(range(256, 512))
    return [chr(byte) if chr(byte).isprintable() and byte != 32 else chr(next(others)) for byte in range(256)]


_Table = Callable[[str, str], Ids]


def _byte_table(backend: Tokenizer) -> _Table | None:
    """The look-up of a tokenizer whose tokens are single bytes; None for another."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    symbols = _byte_symbols()
    if set(vocabulary) != set(symbols) or not _cuts_as(backend, _into_bytes()):
        return None
    table = np.array([vocabulary[symbol] for symbol in symbols], dtype=np.uint16)
    return lambda name, text: table[np.frombuffer(text.encode(), dtype=np.uint8)]


def _character_table(backend: Tokenizer) -> _Table | None:
    """The look-up of a tokenizer whose tokens are single characters; None for another."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if max(map(len, vocabulary)) > 1 or not _cuts_as(backend, _into_characters()):
        return None
    unknown = np.uint32(len(vocabulary))
    table = np.full(max(map(ord, vocabulary)) + 2, unknown, dtype=np.uint32)
    table[[ord(character) for character in vocabulary]] = list(vocabulary.values())

    def look_up(name: str, text: str) -> Ids:
        ids = table[np.minimum(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), len(table) - 1)]
        if (strange := np.flatnonzero(ids == unknown)).size:
            _refuse_character(name, text, int(strange[0]))
        return ids

    return look_up


def _cuts_as(backend: Tokenizer, pre_tokenizer: Any) -> bool:
    """Whether texts go to the tokenizer's model as they are, cut in just this way, and no token was added to it."""
    own = backend.pre_tokenizer
    if own is None or backend.normalizer is not None or own.__getstate__() != pre_tokenizer.__getstate__():
        return False
    return all(token.special for token in backend.get_added_tokens_decoder().values())


def _refuse_character(name: str, text: str, position: int) -> None:
    character = text[position]
    raise UnmaskError(
        f"{name} has the character {character!r} (U+{ord(character):04X}) at position {position}, which is not in the "
        "tokenizer's alphabet; clean the text, extend the alphabet or use the tokenizer 'byte'."
    )


def _check_encodable(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnmaskError(
            f"{name} has half a surrogate pair at position {error.start}, which is no text; decode it as UTF-8 first."
        ) from error
