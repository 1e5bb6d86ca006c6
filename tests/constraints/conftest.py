"""Vocabularies: single bytes, byte-level BPE, and word pieces."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from unmask import registry
from unmask.constraints import Vocabulary
from unmask.data.documents import Document
from unmask.data.tokenizers import with_special_tokens

TEXT = "né né ☃☃ the cat and the dog ☃ and a thé " * 30


@pytest.fixture(scope="session")
def single() -> Vocabulary:
    tokenizer = registry.build("tokenizer", "byte").build(lambda: iter(()))
    return Vocabulary(tokenizer, len(tokenizer), tokenizer.mask_token_id)


@pytest.fixture(scope="session")
def bpe() -> Vocabulary:
    """Bytes, both bytes of é, two of the three bytes of a snowman, and some words."""
    component = registry.build("tokenizer", {"name": "bpe", "vocab_size": 280})
    tokenizer = component.build(lambda: iter([Document("", TEXT)]))
    return Vocabulary(tokenizer, len(tokenizer), tokenizer.mask_token_id)


@pytest.fixture
def wordpiece() -> Vocabulary:
    names = ["[UNK]", "[MASK]", "[EOS]", "cat", "dog", "##s", "##é", "a", "."]
    backend = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    tokenizer = with_special_tokens(backend, mask_token="[MASK]", eos_token="[EOS]", unk_token="[UNK]")
    return Vocabulary(tokenizer, len(names), 1)
