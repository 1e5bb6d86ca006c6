"""Encoding: the ids of the library for texts of any length, in chunks that do not show, and errors with a position."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from unmask import registry
from unmask.data import encoding
from unmask.data.cache import FILES, META
from unmask.data.documents import Document
from unmask.data.encoding import TextEncoder, encode
from unmask.data.sources import Source
from unmask.data.split import Corpus, prepare
from unmask.data.tokenizers import BPETokenizer, HuggingFaceTokenizer
from unmask.errors import UnmaskError

DATA = os.environ.get("UNMASK_DATA")
CHARACTERS = "".join(dict.fromkeys("\n abcdefghijklmnopqrstuvwxyzäöü\U0001f600,.'0123456789TW"))
WORDS = ["the", "cat's", "ünique", "\U0001f600", "it's", "1234", "Tea,", "  Wait...", "\n\n", "a\n"]
SPECS = ["byte", {"name": "char", "alphabet": CHARACTERS}, {"name": "bpe", "vocab_size": 280}]
LIKE = ["gpt2_like", "llama_like"]


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
    letters = {letter: number for number, letter in enumerate(["<unk>", *CHARACTERS, "▁"])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("c", "a"), ("\n", "\n"), ("▁", "▁")]
    vocabulary = letters | {left + right: len(letters) + n for n, (left, right) in enumerate(merges)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<unk>").save_pretrained(tmp_path)
    return HuggingFaceTokenizer(path=str(tmp_path))


@pytest.mark.parametrize("sizes", [(9000, 10, 0, 5000), (9000,)])
@pytest.mark.parametrize("spec", [*SPECS, *LIKE], ids=str)
def test_caches_are_the_same_for_parts_and_chunks_of_any_size(spec, sizes, tmp_path, monkeypatch, request) -> None:
    component = request.getfixturevalue(spec) if spec in LIKE else registry.build("tokenizer", spec)

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


def build(spec: str | dict[str, object]) -> PreTrainedTokenizerFast:
    return registry.build("tokenizer", spec).build(PartsSource().documents)


@pytest.mark.parametrize("prepend", ["always", "first", "never"])
def test_a_mark_of_the_start_is_not_put_before_each_chunk(monkeypatch: pytest.MonkeyPatch, prepend: str) -> None:
    backend = Tokenizer(models.WordLevel({"▁a": 0, "▁": 1, "a": 2, "[UNK]": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    text = "a " * 100 + "a"
    whole = encoder([text])[0].tolist()
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 50)
    assert len(list(encoder.split([Document("a", text)]))) > 3
    assert encoder([text])[0].tolist() == whole


def test_a_boundary_moves_on_where_a_token_would_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_tokens(["b a"])
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 50)
    text = "a b " * 100
    *parts, last = encoder.split([Document("a", text)])
    assert {part.text[-1] for part in parts} == {"a"}
    for size in (1, 2, 52):
        pieces = [Document("a", text[start : start + size], True) for start in range(0, len(text), size)]
        assert [*parts, last] == list(encoder.split([*pieces, Document("a", "")])), "it waits for the text that follows"
    assert encoder([text])[0].tolist() == [0, *[3] * 99, 1]


def test_bad_texts_are_errors_with_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 10)
    for spec, texts, message in (
        ("char", ["fine", "abC"], r"Text 1 has the character 'C' \(U\+0043\) at position 2"),
        ("char", ["a\n"], r"Text 0 has the character '\\n' \(U\+000A\) at position 1"),
        ("char", ["[MASK]"], r"Text 0 has the character '\['"),
        ("char", ["fine", "x" * 25 + "C", "fine"], r"Text 1 has the character 'C' \(U\+0043\) at position 25"),
        ("byte", ["", "fine", "é" * 31 + "\ud800"], "Text 2 has half a surrogate pair at position 31"),
    ):
        with pytest.raises(UnmaskError, match=message):
            encode(build(spec), texts)


def test_the_mask_token_in_a_text_is_an_error_where_it_cannot_be_told_apart() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_tokens([AddedToken("<mask>", special=False)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer._special_tokens_map["mask_token"] = "<mask>"
    assert tokenizer.mask_token_id == 2
    with pytest.raises(UnmaskError, match=r"Text 1 contains the mask token \(id 2\)"):
        encode(tokenizer, ["a a", "a <mask> a"])


@pytest.mark.parametrize("spec", ["byte", {"name": "bpe", "vocab_size": 300}])
def test_truncation_does_not_matter_and_added_tokens_do(spec: str | dict[str, object]) -> None:
    tokenizer = build(spec)
    size = len(tokenizer)
    ids = encode(tokenizer, ["the cat sat"])
    tokenizer(["the cat sat"], truncation=True, max_length=2)
    assert encode(tokenizer, ["the cat sat"]) == ids
    tokenizer.add_tokens(["the cat"])
    assert encode(tokenizer, ["the cat sat"])[0][0] == size


@pytest.mark.skipif(not DATA, reason="UNMASK_DATA, the folder with real data, is not set")
@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased"])
def test_long_texts_of_published_tokenizers(name: str) -> None:
    encoder = TextEncoder(build({"name": "huggingface", "path": f"{DATA}/vocab/{name}"}))
    text = "".join(document.text for document in PartsSource().documents()) * 20
    assert len(text) > encoding.CHUNK_CHARACTERS
    assert np.array_equal(encoder([text])[0], encoder._encode_batch([text])[0])
