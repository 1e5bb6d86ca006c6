"""Chunks make up the text, do not depend on how a source yields it, and do not show in the tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from unmask.data import encoding
from unmask.data.cache import FILES, META
from unmask.data.encoding import encoder_of
from unmask.data.sources import Document, Source
from unmask.data.split import Corpus, prepare
from unmask.data.tokenizers import BPETokenizer, ByteTokenizer, CharTokenizer, HuggingFaceTokenizer, TokenizerComponent

CHARACTERS = "".join(dict.fromkeys("\n abcdefghijklmnopqrstuvwxyzäöü\U0001f600,.'0123456789TW"))
WORDS = ["the", "cat's", "ünique", "\U0001f600", "it's", "1234", "Tea,", "  Wait...", "\n\n", "a\n"]


class PartsSource(Source):
    """Texts of random words, yielded in parts of some size."""

    name: Literal["parts"] = "parts"
    sizes: tuple[int, ...] = (9000, 10, 0, 5000)
    size: int = 1 << 30

    def documents(self) -> Iterator[Document]:
        random = np.random.default_rng(0)
        for number, length in enumerate(self.sizes):
            text = " ".join(random.choice(WORDS, length // 4))[:length]
            parts = [text[start : start + self.size] for start in range(0, len(text), self.size)] or [""]
            yield from (Document(f"d{number}", part, more=n + 1 < len(parts)) for n, part in enumerate(parts))


def simple(kind: str) -> TokenizerComponent:
    tokenizers = (ByteTokenizer(), CharTokenizer(alphabet=CHARACTERS), BPETokenizer(vocab_size=280))
    return {tokenizer.name: tokenizer for tokenizer in tokenizers}[kind]


@pytest.fixture
def gpt2_like(tmp_path: Path) -> HuggingFaceTokenizer:
    """Vocabulary files as GPT-2 has them."""
    tokenizer = BPETokenizer(vocab_size=300).build(PartsSource().documents)
    learned = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**learned["vocab"], "<|endoftext|>": len(learned["vocab"])}))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(pair) for pair in learned["merges"]))
    return HuggingFaceTokenizer(path=str(tmp_path))


@pytest.fixture
def llama_like(tmp_path: Path) -> HuggingFaceTokenizer:
    """A tokenizer that puts a mark before the text and reads it as one long word."""
    from tokenizers import Tokenizer, models, normalizers

    letters = {letter: number for number, letter in enumerate(["<unk>", *CHARACTERS, "▁"])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("c", "a"), ("\n", "\n"), ("▁", "▁")]
    vocabulary = letters | {left + right: len(letters) + n for n, (left, right) in enumerate(merges)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<unk>").save_pretrained(tmp_path)
    return HuggingFaceTokenizer(path=str(tmp_path))


@pytest.mark.parametrize("sizes", [(9000, 10, 0, 5000), (9000,)])
@pytest.mark.parametrize("kind", ["byte", "char", "bpe", "gpt2_like", "llama_like"])
def test_caches_are_the_same_for_parts_and_chunks_of_any_size(
    kind: str,
    sizes: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    component = request.getfixturevalue(kind) if kind.endswith("like") else simple(kind)

    def prepared(size: int) -> tuple[Corpus, list[object]]:
        monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / str(size)))
        corpus = prepare(PartsSource(sizes=sizes, size=size), component, fraction=0.3)
        folders = (corpus.train.folder, corpus.validation.folder)
        return corpus, [(folder.name, [(folder / name).read_bytes() for name in (*FILES, META)]) for folder in folders]

    whole, expected = prepared(1 << 30)
    assert (whole.cut is None) == (len(sizes) > 1)
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 200)
    for size in (7, 1000, 1 << 29):
        corpus, found = prepared(size)
        assert found == expected
        assert corpus.tokenizer.get_vocab() == whole.tokenizer.get_vocab()
        assert corpus.cut == whole.cut


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_chunks_do_not_depend_on_parts(monkeypatch: pytest.MonkeyPatch, kind: str, size: int) -> None:
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 100)
    encoder = encoder_of(simple(kind).build(PartsSource().documents))
    documents = list(PartsSource().documents())
    found = list(encoder.split(PartsSource(size=size).documents()))
    assert found == list(encoder.split(documents))
    assert len(found) > 50
    assert "".join(chunk.text for chunk in found) == "".join(document.text for document in documents)
    for left, right in pairwise(found):
        assert right.before == (left.text[-encoding.CONTEXT_CHARACTERS :] if left.more else "")
        assert right.start == (left.start + len(left.text) if left.more else 0)
