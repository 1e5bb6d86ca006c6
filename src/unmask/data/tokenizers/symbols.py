"""Tokenizers that learn nothing: one token a byte, or one a character."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from unmask.data.inventory import Inventory
from unmask.data.tokenizers.base import EOS, MASK, Documents, TokenizerComponent, with_special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
