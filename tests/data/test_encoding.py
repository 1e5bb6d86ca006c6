"""Encoding: the ids of the library, for texts of any length, and errors that name text and position."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from unmask import registry
from unmask.data import encoding
from unmask.data.encoding import Encoder, encode
from unmask.data.sources import Document
from unmask.errors import UnmaskError

DATA = os.environ.get("UNMASK_DATA")


def corpus() -> Iterator[Document]:
    for number in range(40):
        yield Document(str(number), f"the {number}th story of the cat that sat on the mat, and the other cats.\n" * 3)


def build(spec: str | dict[str, object]) -> PreTrainedTokenizerFast:
    return registry.build("tokenizer", spec).build(corpus)


@pytest.mark.parametrize("prepend", ["always", "first", "never"])
def test_a_mark_of_the_start_is_not_put_before_each_chunk(monkeypatch: pytest.MonkeyPatch, prepend: str) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"▁a": 0, "▁": 1, "a": 2, "[UNK]": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    text = "a " * 100 + "a"
    whole = encoder([text])[0].tolist()
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 50)
    assert len(list(encoder.split([Document("a", text)]))) > 3
    assert encoder([text])[0].tolist() == whole


def test_a_boundary_moves_on_where_a_token_would_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_tokens(["b a"])
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend))
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
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

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
    encoder = Encoder(build({"name": "huggingface", "path": f"{DATA}/vocab/{name}"}))
    text = "".join(document.text for document in corpus()) * 20
    assert len(text) > encoding.CHUNK_CHARACTERS
    assert np.array_equal(encoder([text])[0], encoder._encode_batch([text])[0])
