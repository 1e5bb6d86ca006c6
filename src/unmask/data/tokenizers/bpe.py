"""Byte-pair encoding, learnt from the training text once and then found again."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from unmask.data.inventory import Inventory, take_inventory
from unmask.data.partial import build_once
from unmask.data.pieces import cut, word_end
from unmask.data.place import cache_folder, keeping_in
from unmask.data.sources import Document
from unmask.data.tokenizers.base import EOS, MASK, Documents, TokenizerComponent, with_special_tokens
from unmask.files import atomic_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

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
        place = cache_folder() / "tokenizers" / self._key(inventory)
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
