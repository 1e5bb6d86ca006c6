"""DNA as tokens: one a base."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unmask.data.sources import Document
from unmask.data.sources.base import Inventory
from unmask.registry import Component

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast
import string
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from unmask.data.build_once import build_once, cache_dir, keeping_in
from unmask.data.dna import LETTERS
from unmask.data.pieces import cut, word_end
from unmask.data.sources.base import take_inventory
from unmask.errors import UnmaskError
from unmask.io import atomic_text

Documents = Callable[[], Iterator[Document]]

EOS = "[EOS]"
MASK = "[MASK]"


class TokenizerComponent(Component):
    """What every tokenizer component does."""

    @abstractmethod
    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """Make the tokenizer.

        documents: gives the training text, from its start at each call. inventory: that text's, where it is known; what
        was learnt from the same text before is then found again.
        """


def vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """The number of rows of an embedding for it: the largest id plus one, special tokens (the mask too) included."""
    return max(tokenizer.get_vocab().values()) + 1


def with_special_tokens(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    """The tokenizer as a plain Hugging Face one, with these tokens added where it has not got them."""
    from transformers import PreTrainedTokenizerFast

    new = [token for token in dict.fromkeys(special_tokens.values()) if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens(new)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **special_tokens,  # type: ignore[arg-type]
    )


TEXT8_ALPHABET = " " + string.ascii_lowercase


class ByteTokenizer(TokenizerComponent):
    """UTF-8 bytes: ids 0 to 255 are the bytes, 256 is [EOS], 257 is [MASK]. Every text comes back exactly."""

    name: Literal["byte"] = "byte"

    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """The same for every text."""
        from tokenizers import Tokenizer, decoders, models

        vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = into_bytes()
        tokenizer.decoder = decoders.ByteLevel()
        return with_special_tokens(tokenizer, eos_token=EOS, mask_token=MASK)


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

    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """The same for every text."""
        from tokenizers import Tokenizer, decoders, models

        vocabulary = {character: number for number, character in enumerate(self.alphabet)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = into_characters()
        tokenizer.decoder = decoders.Fuse()
        return with_special_tokens(tokenizer, mask_token=MASK)


def byte_symbols() -> list[str]:
    """The visible character by which byte-level tokenizers write each byte.

    The printable characters of Latin-1 stand for themselves and the other bytes, in order, for those from 256 on.
    """
    others = iter(range(256, 512))
    return [chr(byte) if chr(byte).isprintable() and byte != 32 else chr(next(others)) for byte in range(256)]


def into_bytes() -> Any:
    """Cuts a text into its bytes."""
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def into_characters() -> Any:
    """Cuts a text into its characters."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")


FORMAT = 1
FILE = "tokenizer.json"


class BPETokenizer(TokenizerComponent):
    """Byte-level byte-pair encoding, trained on the training documents. Every text comes back exactly.

    vocab_size: all tokens: the 256 bytes, the learnt pairs, [EOS] (last but one) and [MASK] (last). A text too small
    for so many pairs (each must be seen twice) gives a smaller vocabulary.
    sample_characters: of a longer text, this much is learnt from: documents (of long ones, passages) from all over it.
    """

    name: Literal["bpe"] = "bpe"
    vocab_size: int = Field(default=4096, ge=258)
    sample_characters: int = Field(default=100_000_000, ge=1)

    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """Learn the pairs, or find those that were learnt from the same documents; they are the same."""
        if inventory is None:
            return _finished(self._learn(documents, take_inventory(documents())))
        place = cache_dir() / "tokenizers" / self._key(inventory)
        with keeping_in(place.parent):
            build_once(place, _is_whole, lambda folder: _save(self._learn(documents, inventory), folder))
            return _finished(_read(place))

    def _key(self, inventory: Inventory) -> str:
        content = f"{FORMAT}\n{self.model_dump_json()}\n{inventory.digest}"
        return blake2b(content.encode(), digest_size=20).hexdigest()

    def _learn(self, documents: Documents, inventory: Inventory) -> Tokenizer:
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
        tokenizer.train_from_iterator(self._sample(documents(), inventory.characters), trainer)
        return tokenizer

    def _sample(self, documents: Iterator[Document], characters: int) -> Iterator[str]:
        """Of so many characters as many as are wanted, or all; each passage is drawn with what is wanted yet over
        what comes yet, so that they are spread evenly and never too many."""
        wanted, coming = self.sample_characters, characters
        for number, piece in enumerate(cut(documents, word_end)):
            size = len(piece.text)
            if size <= wanted and _uniform(number) * coming < wanted:
                wanted -= size
                yield piece.text
            coming -= size


def _uniform(number: int) -> float:
    return int.from_bytes(blake2b(number.to_bytes(8, "big"), digest_size=8).digest(), "big") / 2**64


def _finished(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return with_special_tokens(tokenizer, eos_token=EOS, mask_token=MASK)


def _save(tokenizer: Tokenizer, folder: Path) -> None:
    atomic_text(folder / FILE, tokenizer.to_str())


def _read(place: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_str((place / FILE).read_text(encoding="utf-8"))


def _is_whole(place: Path) -> bool:
    try:
        _read(place)
    except Exception:  # the library raises this very class for a damaged file
        return False
    return True


_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class HuggingFaceTokenizer(TokenizerComponent):
    """A published tokenizer: a local folder, or a name on the Hugging Face hub; no code from there is run.

    path: the folder or name. A folder with bare vocabulary files serves too: ``vocab.json`` with ``merges.txt`` (as
    GPT-2 has, where ``<|endoftext|>`` is the EOS), or ``vocab.txt`` (as BERT has; it is lower-cased when the vocabulary
    has no capitals). A tokenizer without mask token gets [MASK] as its last id, so GPT-2's vocabulary becomes 50,258;
    one without EOS uses its separator token as EOS where it has one (BERT's [SEP]).
    """

    name: Literal["huggingface"] = "huggingface"
    path: str

    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """Load it; the documents are not looked at."""
        tokenizer = _load(self.path)
        if tokenizer.eos_token_id is None and tokenizer.sep_token is not None:
            tokenizer.eos_token = tokenizer.sep_token
        if tokenizer.mask_token_id is None:
            tokenizer.add_special_tokens({"mask_token": MASK})
        return tokenizer


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
    return with_special_tokens(published.backend_tokenizer, **tokens)


def _load_bare_bpe(folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    end = "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_special_tokens(tokenizer, bos_token=end, eos_token=end, unk_token=end)


def _load_bare_wordpiece(folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token="[UNK]"))
    ordinary = (token for token in tokenizer.get_vocab() if not token.startswith("["))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not any(token != token.lower() for token in ordinary))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return with_special_tokens(
        tokenizer, unk_token="[UNK]", sep_token="[SEP]", pad_token="[PAD]", cls_token="[CLS]", mask_token=MASK
    )


class DNATokenizer(TokenizerComponent):
    """Bases: A, C, G, T, N have the ids 0 to 4, [MASK] is 5; no EOS. Any other letter is an error.

    `unmask.data.dna.reverse_complement` gives the ids of the opposite strand.
    """

    name: Literal["dna"] = "dna"

    def build(self, documents: Documents, inventory: Inventory | None = None) -> PreTrainedTokenizerFast:
        """The same for every text."""
        return CharTokenizer(alphabet=LETTERS).build(documents)
