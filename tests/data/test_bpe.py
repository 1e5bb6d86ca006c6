"""Byte pairs are learnt once, from a sample that is spread over the text, and found again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from unmask.data import pieces
from unmask.data.encoding import encoder_of
from unmask.data.sources import Document
from unmask.data.sources.base import Inventory, take_inventory
from unmask.data.tokenizers import BPETokenizer
from unmask.errors import UnmaskError


def corpus() -> Iterator[Document]:
    for number in range(400):
        yield Document(str(number), f"the {number}th story of the cat that sat on the mat, and the other cats.\n")


INVENTORY = take_inventory(corpus())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path))
    return tmp_path / "tokenizers"


def forbidden() -> Iterator[Document]:
    raise AssertionError("the text is read again")


def sampled(size: int, documents: list[Document]) -> list[str]:
    characters = take_inventory(documents).characters
    return list(BPETokenizer(sample_characters=size)._sample(iter(documents), characters))


def test_it_is_found_again_by_content_and_options(folder: Path) -> None:
    tokenizer = BPETokenizer(vocab_size=300).build(corpus, INVENTORY)
    again = BPETokenizer(vocab_size=300).build(forbidden, INVENTORY)
    assert encoder_of(again).identity == encoder_of(tokenizer).identity
    assert (again.mask_token_id, again.eos_token_id, len(again)) == (299, 298, 300)
    alone = BPETokenizer(vocab_size=300).build(corpus)
    assert alone.backend_tokenizer.to_str() == again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert len(list(folder.iterdir())) == 1
    BPETokenizer(vocab_size=290).build(corpus, INVENTORY)
    other = [Document("a", "abc" * 9)]
    BPETokenizer(vocab_size=300).build(lambda: iter(other), take_inventory(other))
    BPETokenizer(vocab_size=300, sample_characters=1000).build(corpus, INVENTORY)
    assert len(list(folder.iterdir())) == 4


def test_a_damaged_one_is_learnt_again(folder: Path) -> None:
    tokenizer = BPETokenizer(vocab_size=300).build(corpus, INVENTORY)
    (file,) = folder.rglob("tokenizer.json")
    file.write_text(file.read_text()[:1000])
    again = BPETokenizer(vocab_size=300).build(corpus, INVENTORY)
    assert encoder_of(again).identity == encoder_of(tokenizer).identity
    assert [path.name for path in folder.iterdir()] == [file.parent.name]
    assert [path.name for path in file.parent.iterdir()] == ["tokenizer.json"]


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "file"))
    with pytest.raises(UnmaskError, match=r"cannot be used .* set the environment variable UNMASK_CACHE"):
        BPETokenizer().build(corpus, INVENTORY)


def test_a_small_text_is_taken_whole_and_a_large_one_in_part() -> None:
    documents = list(corpus())
    texts = [document.text for document in documents]
    total = sum(map(len, texts))
    assert sampled(total, documents) == texts
    assert sampled(10 * total, documents) == texts
    for wanted in range(30, total, 1111):
        assert wanted - 80 < sum(map(len, sampled(wanted, documents))) <= wanted
    some = sampled(total // 4, documents)
    assert 0.98 * total / 4 < sum(map(len, some)) <= total // 4
    assert set(some) < set(texts)
    quarters = [sum(text in some for text in texts[start : start + 100]) for start in range(0, 400, 100)]
    assert all(15 <= number <= 35 for number in quarters), "from all over the text"
    distances = set(np.diff([texts.index(text) for text in some]).tolist())
    assert len(distances) > 5, "by a hash, not every fourth"


def test_of_one_long_text_passages_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(document.text for document in corpus())
    parts = [Document("long", text[start : start + 999], True) for start in range(0, len(text), 999)]
    monkeypatch.setattr(pieces, "LONG", 200)
    some = sampled(len(text) // 4, [*parts, Document("long", "")])
    assert len(some) > 20
    assert all(passage in text for passage in some)
    assert 0.9 * len(text) / 4 < sum(map(len, some)) <= len(text) // 4
    assert text.rindex(some[-1]) > 0.8 * len(text)


def test_the_sample_is_what_is_learnt_from() -> None:
    documents = [Document(str(number), f"word{'abcdefghij'[number % 10] * 5} " * 3) for number in range(1000)]
    few = BPETokenizer(vocab_size=500, sample_characters=60).build(lambda: iter(documents))
    assert len(few) < len(BPETokenizer(vocab_size=500).build(lambda: iter(documents)))


def test_an_inventory_of_nothing_is_no_obstacle() -> None:
    assert len(BPETokenizer().build(lambda: iter(()), Inventory())) == 258
