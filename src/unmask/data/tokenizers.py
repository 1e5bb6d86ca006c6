"""Tokenizers: components that build Hugging Face tokenizers."""

from __future__ import annotations

import copy
import math
import os
import string
from abc import abstractmethod
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from unmask.data.documents import CorpusDigest, Document, hash_fraction
from unmask.data.encoding import (
    begins_with_spaces,
    byte_pre_tokenizer,
    byte_symbols,
    character_pre_tokenizer,
    end_after_word,
    split_into_chunks,
    vocabulary_size,
)
from unmask.data.sources.fasta import LETTERS, reverse_complement_text
from unmask.errors import UnmaskError
from unmask.io import CHECKSUMS, atomic_text, build_once, cache_dir, is_intact, read_json, reading
from unmask.registry import Component

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Documents = Callable[[], Iterator[Document]]

EOS = "[EOS]"
MASK = "[MASK]"
TEXT8_ALPHABET = " " + string.ascii_lowercase
BPE_FORMAT = 1
BPE_FILE = "tokenizer.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")
"""A folder with any of these has a tokenizer."""
CHAT_TEMPLATE = "chat_template.jinja"
"""Where newer versions of transformers write the chat template."""
SETTINGS = ("model_max_length", "clean_up_tokenization_spaces", "padding_side", "truncation_side", "chat_template",
            "extra_special_tokens", "model_input_names")  # fmt: skip
"""What is read from tokenizer_config.json besides the special tokens."""
MAX_GROWTH = 1000
MAX_GAPS = 100_000
"""Ids without a token that a vocabulary may have."""
NFKC_GROWTH = 18
"""The longest replacement of a character in Unicode's compatibility forms."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def no_documents() -> Iterator[Document]:
    """What a tokenizer that is not trained is built from."""
    return iter(())


class TokenizerComponent(Component):
    """Base class of the tokenizer components."""

    @abstractmethod
    def build(self, documents: Documents = no_documents, digest: CorpusDigest | None = None) -> PreTrainedTokenizerFast:
        """Build or load the tokenizer; only one that is trained reads the documents.

        documents: yields the training documents, from the start at each call. digest: their digest, if it is known; a
        tokenizer that was trained on the same documents then comes from the cache.
        """


class ByteTokenizer(TokenizerComponent):
    """UTF-8 bytes: ids 0 to 255 are the bytes, 256 is [EOS], 257 is [MASK]. Decoding restores every text."""

    name: Literal["byte"] = "byte"

    def build(self, documents: Documents = no_documents, digest: CorpusDigest | None = None) -> PreTrainedTokenizerFast:
        from tokenizers import Tokenizer, decoders, models

        vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer = byte_pre_tokenizer()
        tokenizer.decoder = decoders.ByteLevel()
        return with_special_tokens(tokenizer, eos_token=EOS, mask_token=MASK)


class CharTokenizer(TokenizerComponent):
    """Characters of a fixed alphabet, ids in its order, then [MASK]; no EOS. Any other character is an error.

    alphabet: the characters; by default the 27 of text8 (space, a to z).
    """

    name: Literal["char"] = "char"
    alphabet: str = TEXT8_ALPHABET

    @field_validator("alphabet")
    @classmethod
    def _has_each_character_once(cls, alphabet: str) -> str:
        if not alphabet or len(set(alphabet)) < len(alphabet):
            raise ValueError("an alphabet must have at least one character, and each only once")
        return alphabet

    def build(self, documents: Documents = no_documents, digest: CorpusDigest | None = None) -> PreTrainedTokenizerFast:
        from tokenizers import Tokenizer, decoders, models

        vocabulary = {character: number for number, character in enumerate(self.alphabet)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = character_pre_tokenizer()
        tokenizer.decoder = decoders.Fuse()
        return with_special_tokens(tokenizer, mask_token=MASK)


class DNATokenizer(TokenizerComponent):
    """Bases: A, C, G, T, N have the ids 0 to 4, [MASK] is 5; no EOS. Any other letter is an error."""

    name: Literal["dna"] = "dna"

    def build(self, documents: Documents = no_documents, digest: CorpusDigest | None = None) -> PreTrainedTokenizerFast:
        return CharTokenizer(alphabet=LETTERS).build()


def complement_map(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """For every token of DNA, the token on the opposite strand: the reverse complement of its text.

    Tokens without a complement, such as N and the mask, map to themselves.
    """
    vocabulary = tokenizer.get_vocab()
    tokens = {token: number for token, number in vocabulary.items() if token and set(token) <= {*"ACGTNacgtn"}}
    if not {*"ACGT"} <= tokens.keys():
        raise UnmaskError(
            "Reverse complements need a tokenizer with the tokens A, C, G and T, and the one here has "
            f"{len({*'ACGT'} & tokens.keys())} of them; set data.tokenizer=dna."
        )
    complements = list(range(max(vocabulary.values()) + 1))
    for token, number in tokens.items():
        opposite = reverse_complement_text(token)
        if opposite not in tokens:
            raise UnmaskError(
                f"Reverse complements need the token '{opposite}', the opposite of '{token}', which the tokenizer does "
                "not have; set data.tokenizer=dna."
            )
        complements[number] = tokens[opposite]
    return complements


class BPETokenizer(TokenizerComponent):
    """Byte-level byte-pair encoding, trained on the training documents. Decoding restores every text.

    vocab_size: the 256 bytes, the learned pairs, [EOS] and [MASK]; fewer if too few pairs occur twice in the text.
    sample_characters: how much of a longer text is used for training, in passages spread evenly over it.
    """

    name: Literal["bpe"] = "bpe"
    vocab_size: int = Field(default=4096, ge=258, le=1_000_000)
    sample_characters: int = Field(default=100_000_000, ge=1)

    def build(self, documents: Documents = no_documents, digest: CorpusDigest | None = None) -> PreTrainedTokenizerFast:
        """Train the tokenizer, or load the one that was trained on the same documents."""
        if digest is None:
            tokenizer = self._train(documents, CorpusDigest.of(documents()).characters)
        else:
            key = f"{BPE_FORMAT}\n{self.model_dump_json()}\n{digest.hexdigest}"
            folder = cache_dir() / "tokenizers" / blake2b(key.encode(), digest_size=20).hexdigest()
            build_once(
                folder,
                lambda folder: _load_bpe(folder) is not None,
                lambda folder: atomic_text(folder / BPE_FILE, self._train(documents, digest.characters).to_str()),
            )
            tokenizer = _load_bpe(folder)  # type: ignore[assignment]
        return with_special_tokens(tokenizer, eos_token=EOS, mask_token=MASK)

    def _train(self, documents: Documents, characters: int) -> Tokenizer:
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
        tokenizer.train_from_iterator(self._sample(documents(), characters), trainer)
        return tokenizer

    def _sample(self, documents: Iterator[Document], characters: int) -> Iterator[str]:
        """Yield passages of at most `sample_characters`, spread evenly over a text of `characters`.

        A passage is taken with probability (characters still wanted) / (characters still to come).
        """
        wanted, coming = self.sample_characters, characters
        for number, chunk in enumerate(split_into_chunks(documents, end_after_word)):
            size = len(chunk.text)
            if size <= wanted and hash_fraction(number.to_bytes(8, "big")) * coming < wanted:
                wanted -= size
                yield chunk.text
            coming -= size


def _load_bpe(folder: Path) -> Tokenizer | None:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str((folder / BPE_FILE).read_text(encoding="utf-8"))
    except Exception:  # the library raises Exception itself for a damaged file
        return None


class HuggingFaceTokenizer(TokenizerComponent):
    """A published tokenizer: a local folder or a name on the Hugging Face hub; its code is never run.

    path: the folder or name; the folder ``vocab/NAME`` below UNMASK_DATA precedes a name on the hub. A folder may also
    hold plain vocabulary files: ``vocab.json`` with ``merges.txt`` (as for GPT-2, where ``<|endoftext|>`` is the EOS),
    or ``vocab.txt`` (as for BERT; lower-cased if the vocabulary has no capitals). A tokenizer without a mask token gets
    [MASK] as its last id, so GPT-2's vocabulary has 50,258 tokens; one without EOS uses its separator token, if it has
    one (BERT's [SEP]).
    """

    name: Literal["huggingface"] = "huggingface"
    path: str

    def build(self, documents: Documents = no_documents, digest: CorpusDigest | None = None) -> PreTrainedTokenizerFast:
        folder = Path(self.path).expanduser()
        data = os.environ.get("UNMASK_DATA")
        if not folder.is_dir() and data is not None and Path(data, "vocab", self.path).is_dir():
            folder = Path(data, "vocab", self.path)
        published = ("tokenizer.json", "tokenizer_config.json", "config.json")
        if not folder.is_dir():
            tokenizer = load_published(self.path)
        elif any((folder / name).is_file() for name in published):
            tokenizer = load_published(str(folder))
        elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            tokenizer = _load_gpt2_files(folder)
        elif (folder / "vocab.txt").is_file():
            tokenizer = _load_bert_file(folder)
        else:
            raise UnmaskError(
                f"The folder {folder} has no tokenizer in it (tokenizer.json, vocab.json, merges.txt or vocab.txt); "
                "name a folder that has one."
            )
        if tokenizer.mask_token_id is None:
            tokenizer.add_special_tokens({"mask_token": MASK})
        return tokenizer


def open_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint, from tokenizer.json and the ordinary settings of tokenizer_config.json.

    The class that the settings name is not used, nor are other files, so that none of them has an effect.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    file = folder / "tokenizer.json"
    settings = read_json(folder / "tokenizer_config.json")
    if (template := folder / CHAT_TEMPLATE).is_file():
        with reading(f"'{template}' cannot be read", "restore it"):
            settings["chat_template"] = template.read_text(encoding="utf-8")
    check_tokenizer_file(file)
    if not is_intact(file):
        raise UnmaskError(
            f"The tokenizer is damaged: '{file}' does not match its checksum; restore the file or fetch it again. If "
            f"you changed it yourself, delete {CHECKSUMS}."
        )
    with reading(f"The tokenizer in '{folder}' cannot be opened", "restore tokenizer.json and tokenizer_config.json"):
        for name in {*SPECIAL_TOKENS} & settings.keys():
            if not isinstance(settings[name], str | dict | None):
                raise TypeError(f"{name} must be a token, got {settings[name]!r:.80}")
        known = {name: settings[name] for name in (*SPECIAL_TOKENS, *SETTINGS) if name in settings}
        known = PreTrainedTokenizerFast.convert_added_tokens(known)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(file)), **known)
        tokenizer.backend_tokenizer.decode_batch([[token] for token in range(vocabulary_size(tokenizer))])
    return tokenizer


def check_tokenizer_file(file: Path) -> None:
    """Raise `UnmaskError` if tokenizer.json has ids far above its number of tokens or multiplies the length of a text.

    The library counts up to the largest id. Nine replacements of a character by ten make a billion characters of one.
    """

    def growth(part: Any) -> int:
        if isinstance(part, list):
            return math.prod(map(growth, part))
        if not isinstance(part, dict):
            return 1
        inner = math.prod(growth(part.get(name)) for name in ("normalizers", "pretokenizers", "decoders"))
        if part.get("type") == "Precompiled":
            return inner * NFKC_GROWTH
        if part.get("type") != "Replace":
            return inner
        written, literal = len(part["content"]), part["pattern"].get("String")
        return inner * (max(1, -(-written // max(1, len(literal)))) if literal is not None else 1 + written)

    content = read_json(file)
    with reading(f"'{file}' cannot be used", "restore it"):
        vocabulary, added = content["model"]["vocab"], content.get("added_tokens") or []
        ids = [*(vocabulary.values() if isinstance(vocabulary, dict) else ()), *(token["id"] for token in added)]
        if (largest := max(ids, default=0)) > len(vocabulary) + len(added) + MAX_GAPS:
            raise ValueError(f"it has {len(vocabulary) + len(added)} tokens and the id {largest}")
        for name in ("normalizer", "pre_tokenizer", "decoder"):
            if growth(content.get(name)) > MAX_GROWTH:
                raise ValueError(f"its {name} can make a text more than {MAX_GROWTH} times as long")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder that holds a network has a tokenizer too."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def load_published(path: str) -> PreTrainedTokenizerFast:
    """Load with AutoTokenizer and convert to the base class, so that checkpoints do not depend on a special one.

    A tokenizer without EOS uses its separator token, if it has one.
    """
    from transformers import AutoTokenizer

    if (file := Path(path, "tokenizer.json")).exists():
        check_tokenizer_file(file)
    with reading(
        f"No tokenizer could be loaded from '{path}', neither as a local folder nor as a name on the Hugging Face hub",
        "check the name, and the network if it is on the hub",
    ):
        published = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    if getattr(published, "backend_tokenizer", None) is None:
        raise UnmaskError(f"The tokenizer '{path}' has no fast version (tokenizer.json); choose one that has.")
    tokens = {name: getattr(published, name) for name in SPECIAL_TOKENS if getattr(published, name, None) is not None}
    if "sep_token" in tokens:
        tokens.setdefault("eos_token", tokens["sep_token"])
    tokenizer = with_special_tokens(published.backend_tokenizer, **tokens)
    tokenizer.chat_template = published.chat_template
    return tokenizer


def _load_gpt2_files(folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    end = "<|endoftext|>"
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_special_tokens(tokenizer, bos_token=end, eos_token=end, unk_token=end)


def _load_bert_file(folder: Path) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token="[UNK]"))
    ordinary = (token for token in tokenizer.get_vocab() if not token.startswith("["))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not any(token != token.lower() for token in ordinary))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    return with_special_tokens(tokenizer, **special, eos_token="[SEP]", mask_token=MASK)


def with_special_tokens(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    """Wrap a tokenizer in the Hugging Face class, adding the special tokens that it does not have."""
    from transformers import PreTrainedTokenizerFast

    new = [token for token in dict.fromkeys(special_tokens.values()) if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens(new)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        **special_tokens,  # type: ignore[arg-type]
    )


def framed_tokenizer(
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    *,
    begin: int | None = None,
    end: bool = False,
    frame: tuple[int, int] | None = None,
) -> PreTrainedTokenizerFast:
    """A copy of a tokenizer whose calls, as in `pipeline("fill-mask")`, give rows like those in training.

    begin: the first token of a row, as for autoregressive networks. end: whether a row ends with EOS. frame: the
    special tokens of an encoder around a row. The mask token includes the space before it if words begin with spaces.
    Padding is EOS, or the mask token if there is no EOS. `encode` gives the same ids as before.
    """
    from tokenizers import AddedToken, processors

    framed = copy.deepcopy(tokenizer)
    framed.model_max_length = max_length
    framed.init_kwargs["padding_side"] = framed.padding_side = "right" if begin is None else "left"
    for option in ("is_local", "local_files_only"):  # of the call that opened it
        framed.init_kwargs.pop(option, None)
    if framed.pad_token is None:
        framed.pad_token = framed.eos_token or framed.mask_token
    if framed.mask_token is not None and begin is None and begins_with_spaces(framed):
        framed.add_special_tokens({"mask_token": AddedToken(framed.mask_token, lstrip=True, special=True)})
    if frame is not None:
        cls, sep = map(str, framed.convert_ids_to_tokens(list(frame)))
        if framed("")["input_ids"] != list(frame):  # such as one of a plain vocabulary file
            framed.backend_tokenizer.post_processor = processors.TemplateProcessing(
                single=[cls, "$A", sep],
                pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
                special_tokens=list(zip((cls, sep), frame, strict=True)),
            )
        return framed
    first = None if begin is None else framed.convert_ids_to_tokens(begin)
    last = framed.eos_token if end else None
    around = {token: framed.convert_tokens_to_ids(token) for token in (first, last) if token is not None}
    framed.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=[token for token in (first, "$A", last) if token is not None],
        special_tokens=list(around.items()),
    )
    return framed
